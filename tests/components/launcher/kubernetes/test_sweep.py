"""Jobs listed and swept on a small API server, by attempts in a real folder."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs_server import NAMESPACE, JobsServer, at_work
from jobs_server import stored_job as job

from thaw.components import storage
from thaw.components.launcher.kubernetes.client import Api
from thaw.components.launcher.kubernetes.sweep import Verdict, list_jobs, sweep
from thaw.components.lease import Lease

Serve = Callable[..., JobsServer]
NOW = datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.UTC)
FOREIGN = {"metadata": {"name": "foreign", "uid": "f", "labels": {}, "creationTimestamp": "2026-03-01T00:00:00Z"}}


def renew(attempt_uri: str | Path, age_s: float, timeout_s: float = 600) -> None:
    lease = Lease(holder="h", renewal=3, renewed_at=NOW - datetime.timedelta(seconds=age_s), timeout_s=timeout_s)
    storage.write_json(f"{attempt_uri}/lease.json", lease.model_dump(mode="json"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    with at_work(tmp_path, monkeypatch) as start:
        yield start


def swept(delete: bool = True) -> dict[str, Verdict]:
    """What a sweep at NOW finds, by run."""
    api = Api(NAMESPACE)
    return {verdict.job.run_id: verdict for verdict in sweep(api, list_jobs(api), delete, lambda: NOW)}


def test_jobs_of_thaw_alone_are_listed_the_newest_first(serve: Serve, tmp_path: Path) -> None:
    serve(
        job(tmp_path / "a", "a", "Created", "Running", creationTimestamp="2026-03-01T06:00:00Z"),
        FOREIGN,
        job(tmp_path / "b", "b"),
    )
    newest, oldest = list_jobs(Api(NAMESPACE))
    assert (newest.run_id, newest.state, newest.attempt_uri) == ("b", "new", f"{tmp_path}/b")
    assert (oldest.run_id, oldest.state, oldest.stage, oldest.attempt) == ("a", "running", "train-frozen", "1")


def test_a_job_whose_attempt_is_over_or_whose_lease_is_lost_is_deleted_and_no_other(
    serve: Serve, tmp_path: Path
) -> None:
    names = ("committed", "failed", "lost", "late", "renewed", "no-lease", "nothing", "damaged", "done", "undone")
    folders = {name: tmp_path / name for name in names}
    for name in set(names) - {"nothing"}:
        storage.write_json(f"{folders[name]}/claim.json", {})
    storage.write_json(f"{folders['committed']}/manifest.json", {})
    storage.write_json(f"{folders['failed']}/failure.json", {})
    for name in ("committed", "failed", "renewed"):
        renew(folders[name], age_s=30)
    renew(folders["lost"], age_s=1300)
    renew(folders["late"], age_s=1100)  # Rank 0 has ended it, or the clocks differ.
    storage.write_bytes(f"{folders['damaged']}/lease.json", b"{")
    for name in ("done", "undone"):  # What has ended holds no pod that runs, and its logs may be wanted.
        storage.write_json(f"{folders[name]}/manifest.json", {})
    ends = {"done": ("Succeeded",), "undone": ("Failed",)}
    server = serve(FOREIGN, *(job(folders[name], name, *ends.get(name, ("Running",))) for name in names))

    listed = swept(delete=False)
    assert {run for run, verdict in listed.items() if verdict.answer == "orphaned"} == {"committed", "failed", "lost"}
    assert {verdict.fate for verdict in listed.values()} == {"stays"}
    assert len(server.jobs) == 1 + len(names)

    found = swept()
    assert {run: verdict.answer for run, verdict in found.items() if verdict.fate == "stays"} == {
        "late": "active",
        "renewed": "active",
        "no-lease": "unknown",
        "nothing": "unknown",
        "damaged": "unknown",
        "done": "ended",
        "undone": "ended",
    }
    assert {run for run, verdict in found.items() if verdict.fate == "deleted"} == {"committed", "failed", "lost"}
    left = {each["metadata"].get("annotations", {}).get("thaw/run-id", "foreign") for each in server.jobs.values()}
    assert left == {"foreign"} | set(names) - {"committed", "failed", "lost"}
    assert found["failed"].reason == f"its attempt has failed: {tmp_path}/failed/failure.json"
    assert found["lost"].reason == "its lease was last renewed 1300 s ago, with a time-out of 600 s"
    assert found["damaged"].reason == f"{tmp_path}/damaged/lease.json is not a lease"


def test_a_job_whose_folder_cannot_be_read_is_in_doubt_and_stays(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text("a file where the folder was")
    server = serve(job(tmp_path / "attempt", "r", "Running"))
    verdict = swept()["r"]
    assert (verdict.answer, verdict.fate) == ("unknown", "stays")
    assert "attempt is a file" in verdict.reason
    assert len(server.jobs) == 1


def test_a_job_that_another_of_its_name_has_replaced_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    renew(tmp_path / "attempt", age_s=10_000)
    server = serve(job(tmp_path / "attempt", "r", "Running"))
    api = Api(NAMESPACE)
    listed = list_jobs(api)
    (name,) = server.jobs
    server.jobs[name]["metadata"]["uid"] = "another"
    sweep(api, listed, True, lambda: NOW)
    assert list(server.jobs) == [name]


def test_a_sweep_asks_a_bounded_number_of_times(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two pages of jobs, one deletion an orphan; of the store a listing and at most one reading a job."""
    asked: list[str] = []
    for name in ("find_files", "read_bytes"):
        real = getattr(storage, name)
        monkeypatch.setattr(storage, name, lambda *args, real=real, name=name: asked.append(name) or real(*args))
    renew(tmp_path / "lost", age_s=10_000)
    storage.write_json(f"{tmp_path}/failed/failure.json", {})
    ends: dict[str, tuple[str, tuple[str, ...]]] = {
        "lost": ("lost", ()),
        "failed": ("failed", ()),
        "done": ("", ("Succeeded",)),
    }
    kinds = [*["lost"] * 200, *["failed"] * 200, *["done"] * 200]
    server = serve(*(job(tmp_path / ends[kind][0], f"r{number}", *ends[kind][1]) for number, kind in enumerate(kinds)))
    assert {verdict.fate for verdict in swept().values()} == {"deleted", "stays"}
    methods = [method for method, _ in server.requests]
    assert (methods.count("GET"), methods.count("DELETE")) == (2, 400)
    assert (asked.count("find_files"), asked.count("read_bytes")) == (400, 200)
