"""What a training step calls: launch a job, wait, and have its figures or the reason why not."""

import functools
from collections.abc import Callable
from typing import Any

from thaw.components import lease, storage
from thaw.components.launcher import local, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob

Backend = Callable[[dict[str, Any], str, Callable[[str], None]], None]
"""Runs a PyTorchJob to its end: manifest, folder for the logs, what to do with each line of the Master's log. Raises
JobFailed."""

BACKENDS: dict[str, Backend] = {"local": local.run}

print_line = functools.partial(print, flush=True)


def launch(job: TrainingJob, backend: str, on_line: Callable[[str], None] = print_line) -> dict[str, Any]:
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
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r}: jobs can be launched on these alone: {', '.join(BACKENDS)}")
    output_uri = job.spec.output_uri
    manifest = pytorchjob.render(job)
    storage.create_json(job.spec_uri, job.spec.model_dump(mode="json"))
    storage.create_json(storage.join(output_uri, "pytorchjob.json"), manifest)
    with lease.renewed(storage.join(output_uri, lease.LEASE), job.spec.lease_timeout_s):
        BACKENDS[backend](manifest, storage.join(output_uri, "logs"), on_line)
    result_uri = storage.join(output_uri, "result.json")
    try:
        result: dict[str, Any] = storage.read_json(result_uri)
    except FileNotFoundError:
        raise JobFailed(job.name, f"every replica ended well, yet the job did not finish: {result_uri} is not there")
    return result
