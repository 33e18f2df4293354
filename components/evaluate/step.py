"""The step `evaluate`: score days that the model never saw, measure, report."""

import datetime
from pathlib import Path
from typing import Any, Protocol

from thaw.components import storage
from thaw.components.config import RunConfig, from_parameter
from thaw.components.evaluate.measure import measure
from thaw.components.evaluate.provenance import PipelineRecord, Provenance, StageRecord, TraceEvent
from thaw.components.evaluate.report import render_report
from thaw.components.evaluate.result import read_result
from thaw.components.launcher.stage_job import run_stage_job, takes_up
from thaw.components.runs import (
    NotCommittedError,
    Stage,
    StageManifest,
    check_same_config,
    read_manifest,
    stage,
    versions,
)
from thaw.components.select_window.window import read_window

STAGE = "evaluate"


class Artifact(Protocol):
    """What the step needs of KFP's artifacts: the folder of a stage's attempt."""

    uri: str
    path: str
    metadata: dict[str, Any]


def run(
    config: str,
    run_uri: str,
    backend: str,
    window: Artifact,
    model: Artifact,
    metrics: Artifact,
    report: Artifact,
) -> None:
    """Score the evaluation days and a sample of the window, measure, and write `metrics.json` and `report.html`.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        backend: Where the scoring job runs.
        window: The attempt of select-window.
        model: The attempt of the last training stage.
        metrics: Gets the attempt's folder and the main figures.
        report: Gets the page.

    Raises:
        NotCommittedError: an input is not committed.
        ValueError: the model was trained under a configuration that disagrees.
        JobFailed: the job did not succeed.
    """
    settings = from_parameter(config)
    inputs = {"window": window.uri, "model": model.uri}
    with stage(settings, run_uri, STAGE, inputs, takes_up=takes_up(backend)) as current:
        if not current.committed:
            _evaluate(settings, backend, current)
    result = read_result(storage.join(current.uri, "metrics.json"))
    metrics.uri = current.uri
    metrics.metadata.update(result.figures())
    Path(report.path).write_bytes(storage.read_bytes(storage.join(current.uri, "report.html")))


def _evaluate(settings: RunConfig, backend: str, current: Stage) -> None:
    check_same_config(current.manifests["model"].config, settings)
    job_figures = run_stage_job(current, settings, backend, "score", checkpoint_uri=current.input_uri("model", "model"))
    selected = read_window(current.input_uri("window", "window"))
    result = measure(settings, selected, storage.join(current.uri, "predictions"))
    page = render_report(result, settings, selected, _provenance(current, settings))
    # Replaced, where another process began the attempt and did not come to its end.
    storage.write_bytes(storage.join(current.uri, "metrics.json"), result.model_dump_json(indent=1).encode())
    storage.write_bytes(storage.join(current.uri, "report.html"), page.encode())
    current.commit(
        figures={**job_figures, **result.figures()},
        outputs={"metrics": "metrics.json", "report": "report.html", "predictions": "predictions"},
        window=current.manifests["window"].window,
    )


def _provenance(current: Stage, config: RunConfig) -> Provenance:
    """The stages that led to the model, followed back from manifest to manifest, as far as they are kept."""
    ancestors = [current.manifests["model"]]
    while (parent := ancestors[0].inputs.get("parent")) is not None:
        try:
            ancestors.insert(0, read_manifest(parent.uri)[0])
        except NotCommittedError:  # of an old run, of which somebody kept the model alone
            break
    stages = (current.manifests["window"], *ancestors)
    run_id = current.attempt.run_id
    return Provenance(run_id, tuple(_record(manifest, run_id) for manifest in stages), versions())


def _record(manifest: StageManifest, run_id: str) -> StageRecord:
    began, ended = map(datetime.datetime.fromisoformat, (manifest.started_at, manifest.finished_at))
    figures = manifest.figures
    return StageRecord(
        name=manifest.stage,
        run_id=manifest.run_id if manifest.run_id != run_id else None,
        seconds=(ended - began).total_seconds(),
        policy=figures.get("policy"),
        num_rows=figures.get("num_rows"),
        losses=tuple((step, loss) for step, loss in figures["loss_curve"]) if "policy" in figures else (),
        pipeline=_pipeline(**figures["pipeline"]) if "pipeline" in figures else None,
    )


def _pipeline(trace: list[dict[str, Any]], **figures: Any) -> PipelineRecord:
    return PipelineRecord(**figures, trace=tuple(TraceEvent(**event) for event in trace))
