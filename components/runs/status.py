"""How far a run came: what `thaw runs` lists and `thaw why` explains."""

import socket
from collections.abc import Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import psutil

from thaw.components import storage
from thaw.components.runs.attempt import ATTEMPTS, FAILURE, MANIFEST, Claim, attempt_uri, attempts_claimed, read_claim
from thaw.components.runs.manifest import Failure, StageManifest, read_failure, read_manifest
from thaw.components.runs.run import RUN, RunRecord, read_run
from thaw.components.runs.stages import recorded_stages

_NUM_AT_ONCE = 32

State = Literal["absent", "running", "died", "failed", "committed"]
"""`died`: the process that claimed the attempt is gone from this machine and left no word."""


@dataclass(frozen=True)
class StageStatus:
    """The newest attempt of a stage."""

    stage: str
    state: State
    attempt: int = 0
    """Its number; 0 where the state is absent."""
    uri: str | None = None
    claim: Claim | None = None
    manifest: StageManifest | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run and its stages, in their order."""

    uri: str
    record: RunRecord
    stages: tuple[StageStatus, ...]

    @property
    def state(self) -> Literal["committed", "running", "died", "failed", "unfinished"]:
        """`committed` where every stage is; else that of the first stage that began and is not; `unfinished` where
        stages wait and none is at work."""
        for stage in self.stages:
            if stage.state != "committed" and stage.state != "absent":
                return stage.state
        return "committed" if all(stage.state == "committed" for stage in self.stages) else "unfinished"


@dataclass(frozen=True)
class NewestRuns:
    """The newest runs of a root."""

    statuses: tuple[RunStatus, ...]
    """The newest first."""
    damaged: tuple[tuple[str, str], ...]
    """URI and fault of those among them that cannot be read, by name."""
    num_runs: int
    """Of the root, in all."""


def run_status(run_uri: str) -> RunStatus:
    """How far a run came.

    Raises:
        ValueError: there is no such run, or a record is damaged.
    """
    record = read_run(run_uri)
    names = recorded_stages(record.config, record.extra)
    files = {file.path for file in storage.find_files(run_uri, f"*/{ATTEMPTS}/*.json")}
    return RunStatus(run_uri, record, tuple(_stage_status(run_uri, name, files) for name in names))


def newest_runs(root: str, limit: int) -> NewestRuns:
    """How far the newest runs under a root came.

    One listing of the records, however many there are, tells which are the newest, by the time when the store got them;
    only of these more is read, of several at once.

    Raises:
        StorageError: the root cannot be listed.
    """
    files = storage.find_files(storage.join(root, "runs"), f"*/{RUN}")
    shown = files
    if all(file.modified_s is not None for file in files):
        shown = sorted(files, key=lambda file: (file.modified_s, file.path))[-limit:]

    def status(uri: str) -> RunStatus | tuple[str, str]:
        try:
            return run_status(uri)
        except (ValueError, OSError) as error:
            return uri, str(error).splitlines()[0]

    with ThreadPoolExecutor(_NUM_AT_ONCE) as pool:
        found = list(pool.map(status, sorted(file.path.removesuffix(f"/{RUN}") for file in shown)))
    statuses = [each for each in found if isinstance(each, RunStatus)]
    statuses.sort(key=lambda each: each.record.created_at, reverse=True)
    damaged = [each for each in found if not isinstance(each, RunStatus)]
    return NewestRuns(tuple(statuses[:limit]), tuple(damaged[:limit]), len(files))


def _stage_status(run_uri: str, stage: str, files: Set[str]) -> StageStatus:
    """The status of a stage of a run that has these files."""
    number = max(attempts_claimed(run_uri, stage, files), default=None)
    if number is None:
        return StageStatus(stage, "absent")
    uri = attempt_uri(run_uri, stage, number)
    claim = read_claim(uri)
    if storage.join(uri, MANIFEST) in files:
        manifest, _ = read_manifest(uri)
        return StageStatus(stage, "committed", number, uri, claim, manifest=manifest)
    if storage.join(uri, FAILURE) in files:
        return StageStatus(stage, "failed", number, uri, claim, failure=read_failure(uri))
    return StageStatus(stage, "died" if _is_gone(claim) else "running", number, uri, claim)


def _is_gone(claim: Claim) -> bool:
    if claim.host != socket.gethostname():
        return False
    try:  # A process's start is counted from the boot, whose time moves a little when the clock is set.
        return abs(psutil.Process(claim.pid).create_time() - claim.process_started_at) > 2
    except psutil.NoSuchProcess:
        return True
