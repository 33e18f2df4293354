"""The step `prepare-backbone`: pretrained tables, made here or fetched."""

from typing import Any, Protocol

from thaw.components.config import RunConfig, from_parameter
from thaw.components.launcher.stage_job import run_stage_job, takes_up
from thaw.components.prepare_backbone.fetch import fetch_backbone
from thaw.components.runs import Stage, stage
from thaw.components.select_window.window import read_window

STAGE = "prepare-backbone"


class Artifact(Protocol):
    """What the step needs of KFP's artifacts: the folder of a stage's attempt."""

    uri: str
    metadata: dict[str, Any]


def run(config: str, run_uri: str, backend: str, window: Artifact, backbone: Artifact) -> None:
    """Pretrain the tables on the engagements before the window, or fetch a published backbone.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        backend: Where a job runs.
        window: The attempt of select-window.
        backbone: Gets the attempt's folder and figures.

    Raises:
        NotCommittedError: the window is not committed.
        BackboneError: the published backbone must not be used.
        JobFailed: the job did not succeed.
    """
    settings = from_parameter(config)
    has_job = settings.backbone.pretrain is not None
    inputs = {"window": window.uri}
    with stage(settings, run_uri, STAGE, inputs, takes_up=has_job and takes_up(backend)) as current:
        if not current.committed:
            uri, figures = _prepare(settings, backend, current)
            current.commit(figures=figures, outputs={"model": uri}, window=current.manifests["window"].window)
    backbone.uri = current.uri
    backbone.metadata.update(
        {key: value for key, value in current.figures.items() if isinstance(value, (int, float, str))}
    )


def _prepare(settings: RunConfig, backend: str, current: Stage) -> tuple[str, dict[str, Any]]:
    """Where the tables lie, below the attempt's folder or by a whole URI, and the figures."""
    if settings.backbone.pretrain:
        return "model", run_stage_job(current, settings, backend, "pretrain")
    selected = read_window(current.input_uri("window", "window"))
    uri, found = fetch_backbone(settings, selected.date, selected.first_day)
    return uri, {
        "trained_through": str(found.trained_through),
        "saw_window_days": sum(day >= selected.first_day for day in found.engagement_days),
    }
