"""The step `prepare-backbone`: pretrained tables, made here or fetched."""

from typing import Any, Protocol

from thaw.components.config import from_parameter
from thaw.components.launcher.stage_job import run_stage_job
from thaw.components.prepare_backbone.fetch import fetch_backbone
from thaw.components.runs import stage
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
    with stage(settings, run_uri, STAGE, {"window": window.uri}) as current:
        figures: dict[str, Any]
        if settings.backbone.pretrain:
            figures = run_stage_job(current, settings, backend, "pretrain")
            uri = "model"
        else:
            selected = read_window(current.input_uri("window", "window"))
            uri, found = fetch_backbone(settings, selected.date, selected.first_day)
            figures = {
                "trained_through": str(found.trained_through),
                "saw_window_days": sum(day >= selected.first_day for day in found.engagement_days),
            }
        current.commit(figures=figures, outputs={"model": uri}, window=current.manifests["window"].window)
    backbone.uri = current.uri
    backbone.metadata.update({key: value for key, value in figures.items() if isinstance(value, (int, float, str))})
