"""What a training step wants to run: the job's specification and its name."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.recipe import Policy
from thaw.components.jobs import JobSpec

MAX_NAME_LENGTH = 50
"""Pods and services are named after the job, with up to 13 more characters (-worker-99999), and end at 63."""

LAUNCHED = "launched.json"
"""In the attempt's folder, once a job that outlives its launcher has been created."""

_ATTEMPT_FIELDS = {"job", "output_uri", "resume_uri", "lease_timeout_s"}
"""What another attempt at the same work, or the same elsewhere, has otherwise."""


@dataclass(frozen=True)
class TrainingJob:
    """One job of the trainer: some replicas, each with some ranks, that work through one specification."""

    config: RunConfig
    spec: JobSpec
    attempt: int
    """Counted from 1."""

    @property
    def name(self) -> str:
        """Its name: a DNS-1035 label of at most 50 characters, the same for the same work and attempt."""
        return self.spec.job

    @property
    def spec_uri(self) -> str:
        """Where its ranks read the specification."""
        return storage.join(self.spec.output_uri, "job.json")

    @property
    def logs_uri(self) -> str:
        """Folder for its replicas' logs."""
        return storage.join(self.spec.output_uri, "logs")

    @property
    def spec_digest(self) -> str:
        """SHA-256 of the work, in hex: equal for all attempts at it."""
        return spec_digest(self.spec)


def training_job(
    config: RunConfig,
    attempt: int,
    *,
    kind: Literal["pretrain", "train", "score"],
    run_id: str,
    stage: str,
    window_uri: str,
    output_uri: str,
    checkpoint_uri: str | None = None,
    policy: Policy | None = None,
    epoch: int = 0,
    resume_uri: str | None = None,
    lease_timeout_s: float | None = None,
) -> TrainingJob:
    """The job of one attempt at a stage, named. The arguments are the fields of JobSpec."""
    spec = JobSpec(
        kind=kind,
        run_id=run_id,
        stage=stage,
        job="",
        config=config.model_dump(mode="json"),
        window_uri=window_uri,
        output_uri=output_uri,
        checkpoint_uri=checkpoint_uri,
        policy=policy,
        epoch=epoch,
        resume_uri=resume_uri,
        lease_timeout_s=lease_timeout_s,
    )
    name = _name(config.name, spec, attempt)
    return TrainingJob(config=config, spec=spec.model_copy(update={"job": name}), attempt=attempt)


def spec_digest(spec: JobSpec) -> str:
    """SHA-256, in hex, of what the job works on and how; not of its name, its output or where it resumes."""
    return document_digest(spec.model_dump(mode="json"))


def document_digest(spec: Mapping[str, Any]) -> str:
    """The digest of a specification as `job.json` has it, which another version of the code may have written."""
    work = {name: value for name, value in spec.items() if name not in _ATTEMPT_FIELDS}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def short_hash(*parts: str) -> str:
    """Ten hex digits that tell tuples of strings apart."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:10]


def _name(prefix: str, spec: JobSpec, attempt: int) -> str:
    stage = _label(spec.stage)[:20].strip("-")
    tail = f"-{stage}-{short_hash(spec.run_id, spec.stage, spec_digest(spec))}-a{attempt}"
    return _label(prefix)[: min(20, MAX_NAME_LENGTH - len(tail))].strip("-") + tail


def _label(text: str) -> str:
    """Lower case, digits and single hyphens; begins with a letter."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789").strip("-") or "job"
