"""The jobs that Thaw made in a namespace, and which of them nobody waits for any more.

A job is orphaned where the record of its own attempt says so: the attempt is committed or has failed, or its lease has
not been renewed for two time-outs. The lease tells the time by its launcher's clock, and is judged by that of this
machine: the second time-out is there for clocks that differ. What cannot be read is doubt, and a job in doubt stays.
"""

import datetime
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from thaw.components import storage
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.lease import LEASE, Lease
from thaw.components.runs.attempt import FAILURE, MANIFEST

_NUM_TIMEOUTS = 2
_NUM_AT_ONCE = 32

Answer = Literal["orphaned", "active", "ended", "unknown"]


@dataclass(frozen=True)
class Job:
    """A PyTorchJob that Thaw made."""

    name: str
    uid: str
    run_id: str
    stage: str
    attempt: str
    state: str
    """In one word: `new`, `queued`, `suspended`, `running`, `succeeded`, `failed`, `deleted` while it goes."""
    created_at: datetime.datetime
    attempt_uri: str | None
    """Folder of its attempt; None where the job does not say."""

    @property
    def ended(self) -> bool:
        """Whether it holds nothing of the cluster any more, and goes by itself."""
        return self.state in ("succeeded", "failed", "deleted")


@dataclass(frozen=True)
class Verdict:
    """Whether anybody waits for a job, and how that is known."""

    job: Job
    answer: Answer
    reason: str
    fate: str = "stays"
    """What became of the job: `stays`, `deleted`, or why it could not be."""


def list_jobs(api: Api) -> list[Job]:
    """The jobs that Thaw made in the namespace, the newest first.

    Raises:
        ApiError: they cannot be listed.
    """
    found = api.list_jobs(f"{pytorchjob.MANAGED_BY}={pytorchjob.THAW}")
    return sorted(map(_job, found), key=lambda job: (job.created_at, job.name), reverse=True)


def sweep(api: Api, jobs: list[Job], delete: bool, now: Callable[[], datetime.datetime] | None = None) -> list[Verdict]:
    """Judge jobs, and have those that are orphaned deleted, their pods with them, if told so.

    A job that has not ended costs a listing of its attempt's folder, a reading of its lease where no end is recorded,
    and its deletion; one that has ended costs nothing. Many are asked about at once.

    Args:
        api: Of their namespace.
        jobs: From `list_jobs`.
        delete: Whether to delete.
        now: The time.
    """
    clock = now or (lambda: datetime.datetime.now(datetime.UTC))

    def one(job: Job) -> Verdict:
        verdict = judge(job, clock())
        if not delete or verdict.answer != "orphaned":
            return verdict
        try:
            api.delete_job(job.name, job.uid)
        except ApiError as error:
            return Verdict(job, verdict.answer, verdict.reason, str(error))
        return Verdict(job, verdict.answer, verdict.reason, "deleted")

    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        return list(pool.map(one, jobs))


def judge(job: Job, now: datetime.datetime) -> Verdict:
    """Whether anybody waits for a job, by the files of its attempt."""
    if job.ended:
        return Verdict(job, "ended", f"it has {job.state}, and goes by itself" if job.state != "deleted" else "it goes")
    if job.attempt_uri is None:
        return Verdict(job, "unknown", f"it has no annotation {pytorchjob.SPEC_URI}")
    try:
        names = {file.path.rpartition("/")[2] for file in storage.find_files(job.attempt_uri, "*.json")}
        if MANIFEST in names:
            return Verdict(job, "orphaned", f"its attempt is committed: {storage.join(job.attempt_uri, MANIFEST)}")
        if FAILURE in names:
            return Verdict(job, "orphaned", f"its attempt has failed: {storage.join(job.attempt_uri, FAILURE)}")
        uri = storage.join(job.attempt_uri, LEASE)
        if LEASE not in names:
            return Verdict(job, "unknown", f"there is no lease: {uri}")
        lease = Lease.model_validate_json(storage.read_bytes(uri))
    except OSError as error:
        return Verdict(job, "unknown", str(error).splitlines()[0])
    except ValidationError:
        return Verdict(job, "unknown", f"{uri} is not a lease")
    age_s = (now - lease.renewed_at).total_seconds()
    words = f"its lease was last renewed {age_s:.0f} s ago, with a time-out of {lease.timeout_s:g} s"
    return Verdict(job, "orphaned" if age_s > _NUM_TIMEOUTS * lease.timeout_s else "active", words)


def _job(document: Mapping[str, Any]) -> Job:
    metadata = document["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    state = pytorchjob.state(document)
    words = {
        "deleted": metadata.get("deletionTimestamp") is not None,
        "succeeded": state.succeeded,
        "failed": state.failed,
        "queued": state.queued,
        "suspended": state.suspended,
        "running": state.started,
        "new": True,
    }
    spec_uri = annotations.get(pytorchjob.SPEC_URI)
    return Job(
        name=metadata["name"],
        uid=metadata["uid"],
        run_id=annotations.get(pytorchjob.RUN_ID, ""),
        stage=labels.get(pytorchjob.STAGE_LABEL, ""),
        attempt=labels.get(pytorchjob.ATTEMPT_LABEL, ""),
        state=next(word for word, holds in words.items() if holds),
        created_at=datetime.datetime.fromisoformat(metadata["creationTimestamp"]),
        attempt_uri=spec_uri.rpartition("/")[0] if spec_uri else None,
    )
