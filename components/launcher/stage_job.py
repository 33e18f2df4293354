"""The training job of a stage's attempt: what the steps that train or score have in common."""

from typing import Any, Literal

from thaw.components import storage
from thaw.components.checkpoint_folder import newest_complete
from thaw.components.config import RunConfig
from thaw.components.config.recipe import Policy
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import LAUNCHED, training_job
from thaw.components.launcher.launch import backend_named, launch
from thaw.components.runs import Stage
from thaw.components.runs.attempt import attempt_uri
from thaw.components.select_window.pins import check_pins
from thaw.components.select_window.window import read_window


def run_stage_job(
    current: Stage,
    config: RunConfig,
    backend: str,
    kind: Literal["pretrain", "train", "score"],
    *,
    checkpoint_uri: str | None = None,
    policy: Policy | None = None,
    epoch: int = 0,
) -> dict[str, Any]:
    """Run a stage's one job over its input `window`, from where the stage's last attempt left off.

    In an attempt that was taken up the job may be there already; where that turns out to have ended, the stage goes on
    in its next attempt.

    Returns:
        The figures that rank 0 wrote.

    Raises:
        ChangedFileError: a file that the job reads is not what was selected.
        JobFailed: the job did not succeed.
    """
    window = read_window(current.input_uri("window", "window"))
    reads = {
        "pretrain": window.engagements,
        "train": (*window.training, *window.items),
        "score": (*window.training, *window.evaluation, *window.items, *window.truth),
    }
    while True:
        job = training_job(
            config,
            current.attempt.number,
            kind=kind,
            run_id=current.attempt.run_id,
            stage=current.attempt.stage,
            window_uri=current.input_uri("window", "window"),
            output_uri=current.uri,
            checkpoint_uri=checkpoint_uri,
            policy=policy,
            epoch=epoch,
            resume_uri=_last_checkpoint(current),
            # On this machine the job ends with its launcher by other means: lifeline.py.
            lease_timeout_s=config.cluster.lease_timeout_s if takes_up(backend) else None,
        )
        try:
            check_pins(reads[kind])
            figures = launch(job, backend)
        except JobFailed as failure:
            current.job_may_live = failure.leaves_open
            if not failure.had_ended:
                raise
            current.begin_anew(failure)
        except Exception:
            # Another start of the step may have launched the attempt's job beside this one.
            current.job_may_live = current.job_may_live or (takes_up(backend) and _is_launched(current.uri))
            raise
        else:
            # What goes wrong from here on leaves what the job has done to another start of the step.
            current.job_may_live = takes_up(backend)
            return figures


def takes_up(backend: str) -> bool:
    """Whether a starting step takes up the open attempt of its stage, as its job may live.

    Raises:
        ValueError: no such backend.
    """
    return backend_named(backend).jobs_outlive_launcher


def _is_launched(uri: str) -> bool:
    try:
        return storage.exists(storage.join(uri, LAUNCHED))
    except storage.StorageError:
        return True


def _last_checkpoint(current: Stage) -> str | None:
    """The newest complete checkpoint that an earlier attempt at the stage left in mid-epoch."""
    attempt = current.attempt
    for number in range(attempt.number - 1, 0, -1):
        uri = newest_complete(storage.join(attempt_uri(attempt.run_uri, attempt.stage, number), "checkpoints"))
        if uri is not None:
            return uri
    return None
