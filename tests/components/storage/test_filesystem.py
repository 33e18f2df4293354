import multiprocessing
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from thaw.components import storage


@pytest.mark.parametrize(
    ("uri", "joined"),
    [
        ("/data", "/data/a/b"),
        ("/data/", "/data/a/b"),
        ("/", "/a/b"),
        (".", "./a/b"),
        ("gs://bucket", "gs://bucket/a/b"),
        ("gs://bucket/x/", "gs://bucket/x/a/b"),
        ("memory://", "memory://a/b"),
    ],
)
def test_joining_puts_one_slash_between_parts(uri: str, joined: str) -> None:
    assert storage.join(uri, "a", "b") == joined


@pytest.fixture
def http_uri(tmp_path: Path) -> Iterator[str]:
    """A folder behind a web server: fsspec's HTTP filesystem is asynchronous, as that of GCS is."""
    (tmp_path / "part").write_bytes(b"content")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def read_in_child(uri: str, content: bytes) -> None:
    assert storage.read_bytes(uri) == content


def forked_reader_ends_well(uri: str) -> bool:
    content = storage.read_bytes(uri)  # Starts the loop thread and the session that a fork breaks.
    reader = multiprocessing.get_context("fork").Process(target=read_in_child, args=(uri, content))
    reader.start()
    reader.join(60)
    reader.kill()
    return reader.exitcode == 0


def test_a_forked_child_reads_over_http_what_its_parent_read(http_uri: str) -> None:
    assert forked_reader_ends_well(f"{http_uri}/part")


def test_a_forked_child_reads_from_gcs_what_its_parent_read(gcs_uri: str) -> None:
    storage.write_bytes(f"{gcs_uri}/part", b"content")
    assert forked_reader_ends_well(f"{gcs_uri}/part")


@pytest.mark.parametrize("protocol", ["http", "gs"])
def test_a_server_that_does_not_answer_is_given_up_after_the_time_out(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
        uri = f"http://{address}/part" if protocol == "http" else "gs://bucket/part"
        filesystem, path = storage.open_filesystem(uri, read_timeout_s=0.2)
        with pytest.raises((TimeoutError, OSError)):
            filesystem.cat_file(path)
