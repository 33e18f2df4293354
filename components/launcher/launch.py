"""What a training step calls: launch a job, wait, and have its figures or the reason why not."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thaw.components import events, lease, storage
from thaw.components.jobs import RESULT
from thaw.components.launcher import local, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob

OnLine = Callable[[str], None]
print_line = functools.partial(print, flush=True)

_PATIENCE_S = 60.0
"""How long the figures of a job that has ended are asked for."""
_PAUSE_S = 2.0


@dataclass(frozen=True)
class Backend:
    """Where jobs run."""

    run: Callable[[TrainingJob, dict[str, Any], OnLine], None]
    """Runs a job to its end, or raises JobFailed: the job, its PyTorchJob, what to do with each line of the Master."""
    jobs_outlive_launcher: bool
    """Whether a job goes on when its launcher is killed, so that another one can take it up."""


def _on_this_machine(job: TrainingJob, manifest: dict[str, Any], on_line: OnLine) -> None:
    local.run(manifest, job.logs_uri, on_line)


def _on_kubernetes(job: TrainingJob, manifest: dict[str, Any], on_line: OnLine) -> None:
    # Its client takes a second to import.
    from thaw.components.launcher.kubernetes.run import run

    run(job, manifest, on_line)


BACKENDS = {
    "local": Backend(_on_this_machine, jobs_outlive_launcher=False),
    "kubernetes": Backend(_on_kubernetes, jobs_outlive_launcher=True),
}


def backend_named(name: str) -> Backend:
    """A backend by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r}: jobs can be launched on these alone: {', '.join(BACKENDS)}")
    return BACKENDS[name]


def launch(job: TrainingJob, backend: str, on_line: OnLine = print_line) -> dict[str, Any]:
    """Run a job to its end.

    Its folder gets the specification that the ranks read (`job.json`), the PyTorchJob (`pytorchjob.json`) and a log of
    each replica (`logs/`).

    Args:
        job: The job.
        backend: Where it runs.
        on_line: Called with each line of the Master's log, as it comes.

    Returns:
        The figures that rank 0 wrote as its last act (`result.json`).

    Raises:
        ValueError: no such backend, or the job can't start there.
        JobFailed: it did not succeed, or there are no figures.
    """
    chosen = backend_named(backend)
    output_uri = job.spec.output_uri
    manifest = pytorchjob.render(job)
    documents = {job.spec_uri: job.spec.model_dump(mode="json"), storage.join(output_uri, "pytorchjob.json"): manifest}
    for uri, document in documents.items():
        try:
            storage.create_json(uri, document)
        except FileExistsError:
            # In an attempt that is taken up; its backend sees to it that the work is the same.
            if not chosen.jobs_outlive_launcher:
                raise
    with lease.renewed(storage.join(output_uri, lease.LEASE), job.spec.lease_timeout_s):
        chosen.run(job, manifest, on_line)
    return _result(job, chosen)


def _result(job: TrainingJob, backend: Backend) -> dict[str, Any]:
    """What rank 0 wrote. The job is over and cost hours: a store that fails for a moment does not lose it."""
    uri = storage.join(job.spec.output_uri, RESULT)
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            result: dict[str, Any] = storage.read_json(uri)
            return result
        except FileNotFoundError:
            raise JobFailed(job.name, f"every replica ended well, yet the job did not finish: {uri} is not there")
        except storage.StorageError as error:
            if time.monotonic() >= until:
                cause = f"every replica ended well, yet what rank 0 wrote can't be read: {error}"
                raise JobFailed(job.name, cause, leaves_open=backend.jobs_outlive_launcher) from error
            events.emit("warning", message=f"{error}; asking again in {_PAUSE_S:g} s")
            time.sleep(_PAUSE_S)
