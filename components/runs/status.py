"""How far a run came: what `thaw runs` lists and `thaw why` explains."""

import socket
from dataclasses import dataclass
from typing import Literal

import psutil

from thaw.components import storage
from thaw.components.runs.attempt import CLAIM, MANIFEST, Claim, attempt_numbers, attempt_uri
from thaw.components.runs.manifest import Failure, StageManifest, read_failure, read_manifest
from thaw.components.runs.run import RunRecord, read_run
from thaw.components.runs.stages import recorded_stages

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


def run_status(run_uri: str) -> RunStatus:
    """How far a run came.

    Raises:
        ValueError: there is no such run, or a record is damaged.
    """
    record = read_run(run_uri)
    names = recorded_stages(record.config, record.extra)
    return RunStatus(run_uri, record, tuple(_stage_status(run_uri, name) for name in names))


def _stage_status(run_uri: str, stage: str) -> StageStatus:
    numbers = attempt_numbers(run_uri, stage)
    if not numbers:
        return StageStatus(stage, "absent")
    uri = attempt_uri(run_uri, stage, numbers[-1])
    claim = Claim.model_validate_json(storage.read_bytes(storage.join(uri, CLAIM)))
    if storage.exists(storage.join(uri, MANIFEST)):
        manifest, _ = read_manifest(uri)
        return StageStatus(stage, "committed", numbers[-1], uri, claim, manifest=manifest)
    failure = read_failure(uri)
    if failure is not None:
        return StageStatus(stage, "failed", numbers[-1], uri, claim, failure=failure)
    return StageStatus(stage, "died" if _is_gone(claim) else "running", numbers[-1], uri, claim)


def _is_gone(claim: Claim) -> bool:
    if claim.host != socket.gethostname():
        return False
    try:  # A process's start is counted from the boot, whose time moves a little when the clock is set.
        return abs(psutil.Process(claim.pid).create_time() - claim.process_started_at) > 2
    except psutil.NoSuchProcess:
        return True
