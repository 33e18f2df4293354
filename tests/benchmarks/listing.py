"""How long it takes to list a thousand runs and to sweep a thousand jobs, and how often the servers are asked for it.

    python tests/benchmarks/listing.py [--runs 1000] [--jobs 1000] [--delay-ms 50]

Store and API server are stand-ins on this machine that hold all in memory; each request to them takes the delay at
least.

  runs   `thaw runs`: the newest 20 of runs of which each has five committed stages
  sweep  `thaw jobs sweep --delete`: of the jobs, none of which has ended, every second one is orphaned
"""

import argparse
import bisect
import collections
import contextlib
import datetime
import io
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

TESTS = Path(__file__).parents[1]
sys.path.extend(str(TESTS / part) for part in (".", "components/launcher", "components/launcher/kubernetes"))

from jobs_server import NAMESPACE, JobsServer, stored_job  # noqa: E402
from slow_server import Handler, SlowServer  # noqa: E402

from thaw.components import runs, storage  # noqa: E402
from thaw.components.config import load  # noqa: E402
from thaw.components.launcher.kubernetes.client import Api  # noqa: E402
from thaw.components.launcher.kubernetes.sweep import list_jobs, sweep  # noqa: E402
from thaw.components.lease import Lease  # noqa: E402

LIMIT = 20
ROOT = "gs://bucket"


class ObjectsServer(SlowServer):
    """One bucket, as much of GCS as lists and reads it.

    Attributes:
        objects: Contents by name.
    """

    def __init__(self, objects: dict[str, bytes], delay_s: float):
        super().__init__(_Objects, delay_s)
        self.objects = objects
        self.names = sorted(objects)


class _Objects(Handler):
    server: ObjectsServer

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(self.path)
        name = unquote(url.path.partition("/o/")[2])
        if name:
            found = self.server.objects.get(name)
            return (404, {}, b"") if found is None else (200, {}, found)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        return 200, {"Content-Type": "application/json"}, json.dumps(self._page(**query)).encode()

    def _page(self, prefix: str, matchGlob: str, maxResults: str, pageToken: str = "") -> dict:
        fits = re.compile("[^/]*".join(map(re.escape, matchGlob.split("*"))))
        names, found = self.server.names, []
        for index in range(bisect.bisect_left(names, max(prefix, pageToken)), len(names)):
            if not names[index].startswith(prefix):
                break
            if len(found) == int(maxResults):
                return {"items": found, "nextPageToken": names[index]}
            if fits.fullmatch(names[index]):
                at = f"2026-03-02T06:00:00.{index:06}Z"
                found.append({"name": names[index], "size": "1", "generation": str(index), "updated": at})
        return {"items": found}


def run_objects(num_runs: int) -> dict[str, bytes]:
    """Runs that are alike: one is made, and the others are copies of its records."""
    config = load("small")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        first = runs.create_run(folder, "first", config)
        for status in runs.run_status(first).stages:
            with runs.stage(config, first, status.stage) as stage:
                stage.commit(outputs={"report": "report.html"})
        files = {file.path.removeprefix(first): storage.read_bytes(file.path) for file in storage.list_files(first)}
    return {f"runs/r{number:04}{name}": data for number in range(num_runs) for name, data in files.items()}


def attempt_objects(num_jobs: int) -> tuple[list[dict], dict[str, bytes]]:
    """The jobs, and their attempts' files: of four, one has failed, one has lost its lease, two are active."""
    now = datetime.datetime.now(datetime.UTC)
    jobs, objects = [], {}
    for number in range(num_jobs):
        folder = f"runs/j{number:04}/train-frozen/attempt-1"
        age_s = 86400 if number % 4 == 1 else 30
        lease = Lease(holder="h", renewal=1, renewed_at=now - datetime.timedelta(seconds=age_s), timeout_s=600)
        objects[f"{folder}/lease.json"] = storage.encode_json(lease.model_dump(mode="json"))
        if number % 4 == 0:
            objects[f"{folder}/failure.json"] = b"{}"
        jobs.append(stored_job(f"{ROOT}/{folder}", f"j{number:04}", "Created", "Running"))
    return jobs, objects


@contextlib.contextmanager
def store(objects: dict[str, bytes], delay_s: float):
    """The store that gs:// URIs lead to in the block."""
    from gcsfs import GCSFileSystem

    with ObjectsServer(objects, delay_s).at_work() as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        GCSFileSystem.clear_instance_cache()  # An instance keeps the address that it was made with.
        storage.open_filesystem(ROOT)
        yield server


def requests(server: SlowServer) -> str:
    """What a server was asked, counted."""
    kinds = collections.Counter(
        "list" if "matchGlob" in path or "limit=" in path else method.lower() for method, path in server.requests
    )
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--delay-ms", type=float, default=50)
    options = parser.parse_args()
    delay_s = options.delay_ms / 1000

    objects = run_objects(options.runs)
    with store(objects, delay_s) as server:
        begun = time.perf_counter()
        newest = runs.newest_runs(ROOT, LIMIT)
        seconds = time.perf_counter() - begun
    assert (newest.num_runs, len(newest.statuses)) == (options.runs, LIMIT)
    assert {status.state for status in newest.statuses} == {"committed"}
    print(f"runs   {LIMIT} of {options.runs} ({len(objects)} files): {seconds:.2f} s")
    print(f"       store: {requests(server)}")

    jobs, objects = attempt_objects(options.jobs)
    cluster = JobsServer(jobs, delay_s)
    with tempfile.TemporaryDirectory() as folder, store(objects, delay_s) as server, cluster.at_work():
        os.environ["KUBECONFIG"] = cluster.kubeconfig(Path(folder))
        begun = time.perf_counter()
        api = Api(NAMESPACE)
        verdicts = sweep(api, list_jobs(api), delete=True)
        seconds = time.perf_counter() - begun
    num_deleted = sum(verdict.fate == "deleted" for verdict in verdicts)
    assert (num_deleted, len(cluster.jobs)) == (options.jobs // 2, options.jobs - options.jobs // 2)
    print(f"sweep  {num_deleted} of {options.jobs} jobs deleted: {seconds:.2f} s")
    print(f"       API server: {requests(cluster)}; store: {requests(server)}")
    print(f"{options.delay_ms:g} ms a request; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
