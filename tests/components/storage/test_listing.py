import subprocess
import sys
import time
from pathlib import Path

import pytest

from thaw.components import storage


def fill(root: str, *names: str) -> None:
    for name in names:
        storage.write_bytes(storage.join(root, name), name.encode())


def test_files_are_listed_at_any_depth_with_their_sizes(store_uri: str) -> None:
    fill(store_uri, "b", "a/x", "a/deep/er/y", ".hidden")
    assert [(file.path, file.size) for file in storage.list_files(store_uri)] == [
        (storage.join(store_uri, name), len(name)) for name in (".hidden", "a/deep/er/y", "a/x", "b")
    ]


def test_a_name_that_begins_like_the_folder_is_not_in_it(store_uri: str) -> None:
    fill(store_uri, "day=1/x", "day=11/y", "day=1.txt")
    assert [file.path for file in storage.list_files(storage.join(store_uri, "day=1"))] == [
        storage.join(store_uri, "day=1/x")
    ]


def test_files_are_found_by_a_pattern_that_stands_for_whole_names(store_uri: str) -> None:
    root = storage.join(store_uri, "r[x]t*")
    fill(root, "a/run.json", "b/run.json", "a/s/run.json", "run.json", "b/run.json.txt", "b/.run.json.tmp")
    assert [file.path for file in storage.find_files(root, "*/run.json")] == [
        f"{root}/a/run.json",
        f"{root}/b/run.json",
    ]
    assert [file.path for file in storage.find_files(root, "*/s/*.json")] == [f"{root}/a/s/run.json"]
    assert [(file.path, file.size) for file in storage.find_files(root, "*.json")] == [(f"{root}/run.json", 8)]
    assert storage.find_files(storage.join(root, "absent"), "*/run.json") == []


def test_files_are_listed_with_the_time_when_they_were_written(store_uri: str) -> None:
    before = time.time()
    fill(store_uri, "a/x")
    for (file,) in (storage.list_files(store_uri), storage.find_files(store_uri, "*/x")):
        assert file.modified_s is not None
        assert before - 1 <= file.modified_s <= time.time() + 1


def test_a_pattern_opens_no_folder_that_it_does_not_name(tmp_path: Path) -> None:
    fill(str(tmp_path), "a/attempt-1/claim.json")
    (tmp_path / "a" / "attempt-2").write_text("a file where a folder could be")
    (tmp_path / "a" / "attempt-3").symlink_to(tmp_path / "gone")
    assert [file.path for file in storage.find_files(str(tmp_path), "*/attempt-*/*.json")] == [
        f"{tmp_path}/a/attempt-1/claim.json"
    ]


def test_a_pattern_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(storage.StorageError, match="runs is a file, and a folder should be there"):
        storage.find_files(str(tmp_path / "runs"), "*/run.json")


def test_more_files_than_a_page_holds_are_all_found(gcs_uri: str) -> None:
    names = [f"runs/r{number:04}/run.json" for number in range(1001)]
    filesystem, path = storage.open_filesystem(gcs_uri)
    filesystem.pipe({f"{path}/{name}": b"{}" for name in names})
    assert [file.path for file in storage.find_files(f"{gcs_uri}/runs", "*/run.json")] == [
        f"{gcs_uri}/{name}" for name in names
    ]


def test_of_a_file_the_listing_is_itself_and_of_what_is_absent_nothing(store_uri: str) -> None:
    fill(store_uri, "items.parquet")
    uri = storage.join(store_uri, "items.parquet")
    assert [file.path for file in storage.list_files(uri)] == [uri]
    assert storage.list_files(storage.join(store_uri, "absent")) == []
    assert storage.list_dirs(storage.join(store_uri, "absent")) == []


def test_folders_are_listed_by_name(store_uri: str) -> None:
    fill(store_uri, "runs/r2/run.json", "runs/r1/run.json", "runs/note")
    assert storage.list_dirs(storage.join(store_uri, "runs")) == ["r1", "r2"]


def test_the_folders_of_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(storage.StorageError, match="runs is a file, and a folder should be there"):
        storage.list_dirs(str(tmp_path / "runs"))


@pytest.mark.parametrize("kind", ["local", "gcs"])
def test_what_another_process_wrote_is_seen_at_once(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = str(tmp_path) if kind == "local" else request.getfixturevalue("gcs_uri")
    fill(root, "day=1/part-0")
    assert len(storage.list_files(root)) == 1
    assert storage.list_dirs(root) == ["day=1"]
    assert not storage.exists(f"{root}/day=1/part-1")
    script = "import sys; from thaw.components import storage; [storage.write_bytes(uri, b'') for uri in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", script, f"{root}/day=1/part-1", f"{root}/day=2/part-0"], check=True)
    assert len(storage.list_files(root)) == 3
    assert storage.list_dirs(root) == ["day=1", "day=2"]
    assert storage.exists(f"{root}/day=1/part-1")


def test_a_link_to_nothing_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "part.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(storage.StorageError, match=r"part\.parquet: is a link to a file that is not there"):
        storage.list_files(str(tmp_path))


def test_folders_that_are_links_are_followed(tmp_path: Path) -> None:
    fill(str(tmp_path / "elsewhere"), "part")
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "day=1").symlink_to(tmp_path / "elsewhere")
    assert storage.list_dirs(str(tmp_path / "log")) == ["day=1"]
    assert [file.path for file in storage.list_files(str(tmp_path / "log"))] == [f"{tmp_path}/log/day=1/part"]


def test_the_marker_objects_of_folders_are_no_files(gcs_uri: str) -> None:
    fill(gcs_uri, "day=1/", "day=1/part")
    assert [file.path for file in storage.list_files(gcs_uri)] == [f"{gcs_uri}/day=1/part"]


def test_equal_content_has_one_version_and_other_content_another(tmp_path: Path) -> None:
    fill(str(tmp_path / "a"), "x")
    fill(str(tmp_path / "b"), "x", "y")
    assert storage.list_files(str(tmp_path / "a"))[0].version is None
    version = storage.content_version(f"{tmp_path}/a/x")
    assert version == "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert storage.content_version(f"{tmp_path}/b/x") == version
    assert storage.content_version(f"{tmp_path}/b/y") != version


def test_an_object_that_is_replaced_has_a_new_generation(gcs_uri: str) -> None:
    versions = set()
    for _ in range(2):
        fill(gcs_uri, "x")
        (file,) = storage.list_files(gcs_uri)
        assert file.version is not None and file.version.startswith("generation:")
        versions.add(file.version)
    assert len(versions) == 2
