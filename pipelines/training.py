"""The pipelines: select the window, prepare the backbone, freeze, thaw, evaluate; whole, or a part of it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from kfp import dsl
from kfp.dsl.python_component import PythonComponent

from thaw.components.config import RunConfig
from thaw.components.evaluate.component import evaluate
from thaw.components.prepare_backbone.component import prepare_backbone
from thaw.components.promote.component import promote
from thaw.components.publish_backbone.component import publish_backbone
from thaw.components.runs import config_stages, stage_names
from thaw.components.select_window.component import select_scheduled_window, select_window
from thaw.components.train_epoch.component import train_epoch

Settle = Callable[[dsl.PipelineTask], dsl.PipelineTask]


def training_pipeline(
    settings: RunConfig, num_retries: int = 0, kind: str = "whole"
) -> dsl.base_component.BaseComponent:
    """The pipeline of a run that selects its window, as KFP compiles it.

    The stages, the policies and the image of `settings` are compiled in; all else travels in the parameter `config`.

    Args:
        settings: The run's configuration.
        num_retries: How often KFP tries a failed step again; each try resumes from the stage's last checkpoint.
        kind: Which stages it has (`kind_stages`).
    """
    settle = _settling(settings, num_retries)
    first, *others = config_stages(settings, kind)
    assert first == "select-window", kind

    @dsl.pipeline(name=_name(kind), description="Freeze, then thaw: two epochs over one window of days.")
    def thaw(config: str, run_uri: str, date: str, backend: str = "kubernetes") -> None:
        selected = settle(select_window(config=config, run_uri=run_uri, date=date, backend=backend, kind=kind))
        _follow(settings, settle, others, _common(config, backend, selected))

    return thaw


def stage_pipeline(settings: RunConfig, kind: str, num_retries: int = 0) -> dsl.base_component.BaseComponent:
    """The pipeline of a run that builds on stages of another, as KFP compiles it.

    Args:
        settings: The run's configuration.
        kind: `from:<stage>` or `stage:<stage>`, of a stage after `select-window`; or that after `backbone:`.
        num_retries: As of `training_pipeline`.
    """
    settle = _settling(settings, num_retries)
    stages = config_stages(settings, kind)

    def follow(window_uri: str, parent_uri: str | None, **given: str) -> None:
        window, parent = _imported("window", window_uri, dsl.Dataset), None
        if parent_uri is not None:
            parent = _imported("parent", parent_uri, dsl.Metrics if stages[0] == "promote" else dsl.Model)
        _follow(settings, settle, stages, {**given, "window": window}, parent)

    description = f"Freeze, then thaw: {', '.join(stages)}, on what another run left."
    if stages[0] == "prepare-backbone":

        @dsl.pipeline(name=_name(kind), description=description)
        def thaw_from_window(
            config: str, run_uri: str, window_uri: str, fingerprint: str, backend: str = "kubernetes"
        ) -> None:
            follow(window_uri, None, config=config, run_uri=run_uri, fingerprint=fingerprint, backend=backend)

        return thaw_from_window

    @dsl.pipeline(name=_name(kind), description=description)
    def thaw_from_stage(
        config: str, run_uri: str, window_uri: str, parent_uri: str, fingerprint: str, backend: str = "kubernetes"
    ) -> None:
        follow(window_uri, parent_uri, config=config, run_uri=run_uri, fingerprint=fingerprint, backend=backend)

    return thaw_from_stage


def scheduled_pipeline(
    settings: RunConfig, num_retries: int = 0, kind: str = "whole"
) -> dsl.base_component.BaseComponent:
    """The pipeline of a schedule: each run takes its date from the time that it was scheduled for.

    kfp.local cannot run it, as nothing there was scheduled.

    Args:
        settings: The runs' configuration.
        num_retries: As of `training_pipeline`.
        kind: `whole` or `backbone`.
    """
    settle = _settling(settings, num_retries)
    first, *others = config_stages(settings, kind)
    assert first == "select-window", kind

    @dsl.pipeline(
        name=_name(kind) + "-scheduled", description="Freeze, then thaw, over the window that the schedule gives."
    )
    def thaw_scheduled(
        config: str,
        root: str,
        schedule: str,
        cron: str,
        zone: str = "UTC",
        lag_days: int = 1,
        backend: str = "kubernetes",
    ) -> None:
        select = _named("select-window", select_scheduled_window)
        selected = settle(
            select(
                config=config,
                root=root,
                schedule=schedule,
                # KFP's driver fills in a placeholder only where it is the whole constant value of a task's input.
                scheduled_time=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
                cron=cron,
                zone=zone,
                lag_days=lag_days,
                kfp_run=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
                backend=backend,
                kind=kind,
            )
        )
        _follow(settings, settle, others, _common(config, backend, selected))

    return thaw_scheduled


def _settling(settings: RunConfig, num_retries: int) -> Settle:
    """What every task gets: its image, no cache, its retries."""

    def settle(task: dsl.PipelineTask) -> dsl.PipelineTask:
        # Off for every step: the content under equal parameters can change, and a run's folder is its own.
        task.set_caching_options(enable_caching=False).set_container_image(settings.cluster.image)
        if num_retries:
            # KFP's own ceiling is an hour from the first try's start: a longer training would never be tried again.
            task.set_retry(num_retries, backoff_duration="60s", backoff_factor=2, backoff_max_duration="86400s")
        return task

    return settle


def _common(config: str, backend: str, selected: dsl.PipelineTask) -> dict[str, Any]:
    """What every step after `select-window` takes from it and from the pipeline's parameters."""
    return {
        "config": config,
        "run_uri": selected.outputs["run_uri"],
        "backend": backend,
        "fingerprint": selected.outputs["fingerprint"],
        "window": selected.outputs["window"],
    }


def _follow(
    settings: RunConfig,
    settle: Settle,
    stages: Sequence[str],
    common: dict[str, Any],
    parent: dsl.pipeline_channel.PipelineArtifactChannel | None = None,
) -> None:
    """The steps of stages after `select-window`, in a pipeline that is being built; each builds on the one before.

    Args:
        settings: The run's configuration.
        settle: What every task gets.
        stages: Their names, in order.
        common: Arguments of every step.
        parent: What the first of them builds on, beside the window.
    """
    without_job = {key: common[key] for key in ("config", "run_uri", "fingerprint")}
    epochs = stage_names(settings.recipe.policies)
    for stage in stages:
        if stage == "prepare-backbone":
            parent = settle(prepare_backbone(**common)).outputs["backbone"]
        elif stage == "publish-backbone":
            settle(publish_backbone(**without_job, backbone=parent))
        elif stage == "evaluate":
            parent = settle(evaluate(**common, model=parent)).outputs["metrics"]
        elif stage == "promote":
            settle(promote(**without_job, metrics=parent))
        else:
            train = _named(stage, train_epoch)
            parent = settle(train(**common, epoch=epochs.index(stage), parent=parent)).outputs["model"]


def _imported(name: str, uri: str, kind: type[dsl.Artifact]) -> dsl.pipeline_channel.PipelineArtifactChannel:
    """What another run left, as an artifact: KFP's lineage shows where it comes from."""
    task = dsl.importer(artifact_uri=uri, artifact_class=kind, reimport=False)
    return task.set_caching_options(enable_caching=False).set_display_name(f"import-{name}").output


def _name(kind: str) -> str:
    return "thaw" if kind == "whole" else f"thaw-{kind.replace(':', '-')}"


def _named(stage: str, component: PythonComponent) -> PythonComponent:
    """The same component under the stage's name, which KFP gives the task."""
    return PythonComponent(dataclasses.replace(component.component_spec, name=stage), component.python_func)
