import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from thaw.components import storage


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_what_is_written_is_read_and_replaced(store_uri: str) -> None:
    uri = storage.join(store_uri, "a", "b.txt")
    assert not storage.exists(uri)
    storage.write_bytes(uri, b"first")
    storage.write_bytes(uri, b"second")
    assert storage.exists(uri)
    assert storage.read_bytes(uri) == b"second"
    assert storage.read_bytes(uri, 1, 3) == b"ec"


def test_creating_never_replaces(store_uri: str) -> None:
    uri = storage.join(store_uri, "claim.json")
    storage.create_json(uri, {"owner": 1})
    with pytest.raises(FileExistsError, match=r"claim\.json"):
        storage.create_json(uri, {"owner": 2})
    assert storage.read_json(uri) == {"owner": 1}


def create_my_pid(uri: str) -> bool:
    try:
        storage.create_bytes(uri, str(os.getpid()).encode())
    except FileExistsError:
        return False
    return True


@pytest.mark.parametrize("kind", ["local", "gcs"])
def test_of_processes_that_create_one_file_one_succeeds(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path) if kind == "local" else request.getfixturevalue("gcs_uri")
    uri = storage.join(root, "claim")
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        outcomes = pool.map(create_my_pid, [uri] * 6, chunksize=1)
    assert sorted(outcomes) == [False] * 5 + [True]
    assert storage.read_bytes(uri).isdigit()


def test_reading_what_is_absent_is_a_file_not_found_error_with_the_uri(store_uri: str) -> None:
    uri = storage.join(store_uri, "absent")
    with pytest.raises(FileNotFoundError) as caught:
        storage.read_bytes(uri)
    assert caught.value.filename == uri


def test_a_file_that_is_no_json_is_named(store_uri: str) -> None:
    uri = storage.join(store_uri, "torn.json")
    storage.write_bytes(uri, b'{"half": ')
    with pytest.raises(storage.StorageError, match=r"torn\.json: not a JSON document of 9 bytes"):
        storage.read_json(uri)


def test_a_number_that_json_has_not_is_refused_and_nothing_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nan"):
        storage.write_json(str(tmp_path / "figures.json"), {"auc": float("nan")})
    assert names(tmp_path) == []


def test_a_tree_is_copied_with_its_folders(store_uri: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "a.bin").write_bytes(b"a" * 100)
    (source / "deep" / "b.bin").write_bytes(b"b" * 50)
    storage.upload_tree(source, storage.join(store_uri, "copy"))
    files = storage.list_files(storage.join(store_uri, "copy"))
    assert [(file.path, file.size) for file in files] == [
        (storage.join(store_uri, "copy/a.bin"), 100),
        (storage.join(store_uri, "copy/deep/b.bin"), 50),
    ]
    assert storage.read_bytes(files[1].path) == b"b" * 50


@pytest.mark.parametrize("store_uri", ["local", "gcs"], indirect=True)
def test_a_source_that_cannot_be_read_leaves_the_file_as_it_was(store_uri: str, tmp_path: Path) -> None:
    # /proc/self/mem is a regular file whose first page cannot be read: a real input/output error.
    source = tmp_path / "source"
    source.mkdir()
    (source / "part").symlink_to("/proc/self/mem")
    target = storage.join(store_uri, "part")
    storage.write_bytes(target, b"earlier")
    with pytest.raises(
        storage.StorageError, match=r"part: cannot write the content of .*: (Input/output error|Invalid argument)"
    ):
        storage.upload_tree(source, store_uri)
    assert storage.read_bytes(target) == b"earlier"
    assert [file.path for file in storage.list_files(store_uri)] == [target]


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    script = """
import sys
from thaw.components import storage
for letter in b"ab" * 1000:
    storage.write_bytes(sys.argv[1], bytes([letter]) * (4 << 20))
    print(letter, flush=True)
"""
    path = tmp_path / "model"
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(3):
        assert writer.stdout.readline()
    writer.kill()
    assert writer.wait() == -signal.SIGKILL
    writer.stdout.close()
    content = path.read_bytes()
    assert content in (b"a" * (4 << 20), b"b" * (4 << 20))


def test_a_full_disk_is_one_clear_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    script = """
import os, sys
from thaw.components import storage
folder = sys.argv[1]
storage.write_bytes(f"{folder}/model", b"earlier")
for write in storage.write_bytes, storage.create_bytes:
    try:
        write(f"{folder}/{'model' if write is storage.write_bytes else 'new'}", bytes(1 << 20))
    except storage.StorageError as error:
        print(error)
print(os.listdir(folder), storage.read_bytes(f"{folder}/model"))
"""
    mount = f"mount -t tmpfs -o size=256k none {tmp_path}"
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, mount], capture_output=True).returncode:
        pytest.skip("no mount namespace here, so no small filesystem to fill")
    command = f'{mount} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run([*namespace, command, sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"{tmp_path}/model: cannot write: No space left on device",
        f"{tmp_path}/new: cannot create: No space left on device",
        "['model'] b'earlier'",
    ]


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("I am a file")
    for write in (storage.write_bytes, storage.create_bytes):
        with pytest.raises(storage.StorageError, match=f"{root} is a file, and a folder should be there"):
            write(str(root / "runs" / "r1" / "run.json"), b"{}")
        with pytest.raises(storage.StorageError, match=f"{root} is a file, and a folder should be there"):
            write(str(root / "run.json"), b"{}")
    assert root.read_text() == "I am a file"


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Without root's right to pass over permissions."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_a_folder_without_permission_is_an_error_and_not_an_empty_one(tmp_path: Path, unprivileged: None) -> None:
    closed = f"/tmp/closed-{os.getpid()}"
    Path(closed).mkdir()
    try:
        storage.write_bytes(f"{closed}/day/part.parquet", b"")
        Path(closed, "day").chmod(0)
        for ask in (storage.list_files, storage.list_dirs, storage.read_bytes):
            with pytest.raises(storage.StorageError, match=f"{closed}/day.*: Permission denied"):
                ask(f"{closed}/day/part.parquet" if ask is storage.read_bytes else f"{closed}/day")
        with pytest.raises(storage.StorageError, match="Permission denied"):
            storage.list_files(closed)
        with pytest.raises(storage.StorageError, match="cannot write: Permission denied"):
            storage.write_bytes(f"{closed}/day/part.parquet", b"")
    finally:
        Path(closed, "day").chmod(0o700)
        shutil.rmtree(closed)


def test_a_bucket_that_is_not_there_is_named(gcs_uri: str) -> None:
    with pytest.raises(storage.StorageError, match="gs://no-such-bucket/a: cannot write: no such bucket"):
        storage.write_bytes("gs://no-such-bucket/a", b"")


@pytest.mark.parametrize("source_kind", ["local", "store"])
def test_a_file_is_copied_within_a_store_and_into_one(store_uri: str, tmp_path: Path, source_kind: str) -> None:
    source = storage.join(store_uri if source_kind == "store" else str(tmp_path / "here"), "a", "part")
    target = storage.join(store_uri, "b", "part")
    storage.write_bytes(source, b"content")
    storage.copy_file(source, target)
    assert storage.read_bytes(target) == b"content"
    back = str(tmp_path / "back" / "part")
    storage.copy_file(target, back)
    assert Path(back).read_bytes() == b"content"


def test_an_absent_file_is_not_copied(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        storage.copy_file(f"{tmp_path}/nothing", f"{tmp_path}/copy")
    assert names(tmp_path) == []


def test_a_file_is_told_from_a_folder(store_uri: str) -> None:
    uri = storage.join(store_uri, "folder", "file")
    storage.write_bytes(uri, b"")
    assert storage.is_file(uri)
    assert not storage.is_file(storage.join(store_uri, "folder"))
    assert not storage.is_file(storage.join(store_uri, "nothing"))
