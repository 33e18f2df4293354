import multiprocessing
import re
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from reading_log import pin, request_ids, request_table

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestLoader
from thaw.components.trainer.reading.parquet import ReadError

# A filesystem that was used before a fork and never answers after it: https://github.com/fsspec/gcsfs/issues/379

MakeConfig = Callable[..., RunConfig]
WriteLog = Callable[..., list[DataFile]]


class ParquetServer:
    """The files of a folder over HTTP, with ranges; and a file that it stops answering for."""

    def __init__(self, folder: Path) -> None:
        self.silent_for: str | None = None
        self._over = threading.Event()
        server = self

        class Handler(SimpleHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                path = folder / self.path.lstrip("/")
                if server.silent_for == path.name and body:
                    server._over.wait()
                    return
                if not path.is_file():
                    self.send_error(404)
                    return
                content = path.read_bytes()
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                part = content[int(asked[1]) : int(asked[2]) + 1] if asked else content
                self.send_response(206 if asked else 200)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(part)))
                self.end_headers()
                if body:
                    self.wfile.write(part)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ParquetServer]:
    server = ParquetServer(tmp_path)
    yield server
    server.close()


def served(files: list[DataFile], server: ParquetServer, tmp_path: Path) -> list[DataFile]:
    return [file.model_copy(update={"uri": file.uri.replace(str(tmp_path), server.url)}) for file in files]


def _rank(
    rank: int, meeting: Path, config: RunConfig, files: list[DataFile], results: multiprocessing.SimpleQueue
) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))  # gloo's threads run when the workers are forked
    filesystem, path = storage.open_filesystem(files[0].uri)
    pq.read_metadata(filesystem.open(path))  # so does the event loop of the filesystem
    epochs = []
    for epoch in (0, 1):
        batches = []
        for batch in RequestLoader(config, files, rank, 2, epoch):
            dist.all_reduce(torch.ones(1))
            batches.append(batch)
        epochs.append(request_ids(batches))
    results.put((rank, epochs))
    dist.destroy_process_group()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_ranks_of_forked_workers_read_a_remote_store_that_their_rank_used_before(
    tmp_path: Path, make_config: MakeConfig, write_log: WriteLog, server: ParquetServer, num_workers: int
) -> None:
    files = served(write_log([100, 100, 100], row_group_size=30), server, tmp_path)
    config = make_config(training__num_workers=num_workers, training__global_batch_size=30)
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    ranks = [fork.Process(target=_rank, args=(rank, tmp_path / "meeting", config, files, results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    found = dict(results.get() for _ in ranks)
    for epoch in (0, 1):
        assert len(found[0][epoch]) == len(found[1][epoch]) == 10
        rows = [row for rank in (0, 1) for batch in found[rank][epoch] for row in batch]
        assert sorted(rows) == list(range(300))
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_store_that_stops_answering_is_an_error_in_time(
    tmp_path: Path, make_config: MakeConfig, write_log: WriteLog, server: ParquetServer, num_workers: int
) -> None:
    files = served(write_log([10, 10, 10]), server, tmp_path)
    server.silent_for = "0.parquet"
    config = make_config(training__num_workers=num_workers, training__read_timeout_s=1, training__shuffle=False)
    worker = "loader worker [01]: " if num_workers else ""
    with pytest.raises(ReadError, match=rf"^{worker}{server.url}/\S+0.parquet: no answer from the store within 1 s"):
        list(RequestLoader(config, files, 0, 1, 0))


def test_a_remote_file_that_is_gone_or_short_is_named(
    tmp_path: Path, make_config: MakeConfig, write_log: WriteLog, server: ParquetServer
) -> None:
    local = write_log([10, 10])
    files = served(local, server, tmp_path)
    Path(local[1].uri).write_bytes(b"short")
    with pytest.raises(ReadError, match=f"{files[1].uri} has 5 bytes, and {files[1].size} in the manifest"):
        list(RequestLoader(make_config(), files, 0, 1, 0))
    Path(local[1].uri).unlink()
    with pytest.raises(ReadError, match=f"{files[1].uri}: in the manifest but not found"):
        list(RequestLoader(make_config(), files, 0, 1, 0))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bucket_is_read(tmp_path: Path, make_config: MakeConfig, gcs_uri: str, num_workers: int) -> None:
    files = []
    for day in range(3):
        path = tmp_path / f"{day}.parquet"
        pq.write_table(request_table(10 * day, 10), path)
        uri = storage.join(gcs_uri, path.name)
        storage.write_bytes(uri, path.read_bytes())
        files.append(pin(path, day, uri))
    loader = RequestLoader(make_config(training__num_workers=num_workers), files, 0, 1, 0)
    assert sorted(row for batch in request_ids(loader) for row in batch) == list(range(30))
