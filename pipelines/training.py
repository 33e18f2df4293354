"""The pipelines: select the window, prepare the backbone, freeze, thaw, evaluate."""

import dataclasses
from collections.abc import Callable

from kfp import dsl
from kfp.dsl.python_component import PythonComponent

from thaw.components.config import RunConfig
from thaw.components.evaluate.component import evaluate
from thaw.components.prepare_backbone.component import prepare_backbone
from thaw.components.runs import stage_names
from thaw.components.select_window.component import select_scheduled_window, select_window
from thaw.components.train_epoch.component import train_epoch

Settle = Callable[[dsl.PipelineTask], dsl.PipelineTask]


def training_pipeline(settings: RunConfig, num_retries: int = 0) -> dsl.base_component.BaseComponent:
    """The pipeline of one run, as KFP compiles it.

    The policies and the image of `settings` are compiled in; all else travels in the parameter `config`.

    Args:
        settings: The run's configuration.
        num_retries: How often KFP tries a failed step again; each try resumes from the stage's last checkpoint.
    """
    settle = _settling(settings, num_retries)

    @dsl.pipeline(name="thaw", description="Freeze, then thaw: two epochs over one window of days.")
    def thaw(config: str, run_uri: str, date: str, backend: str = "kubernetes") -> None:
        selected = settle(select_window(config=config, run_uri=run_uri, date=date, backend=backend))
        _train_and_evaluate(settings, settle, selected, config, backend)

    return thaw


def scheduled_pipeline(settings: RunConfig, num_retries: int = 0) -> dsl.base_component.BaseComponent:
    """The pipeline of a schedule: each run takes its date from the time that it was scheduled for.

    kfp.local cannot run it, as nothing there was scheduled.

    Args:
        settings: The runs' configuration.
        num_retries: As of `training_pipeline`.
    """
    settle = _settling(settings, num_retries)

    @dsl.pipeline(name="thaw-scheduled", description="Freeze, then thaw, over the window that the schedule gives.")
    def thaw_scheduled(
        config: str, root: str, schedule: str, zone: str = "UTC", lag_days: int = 1, backend: str = "kubernetes"
    ) -> None:
        select = _named("select-window", select_scheduled_window)
        selected = settle(
            select(
                config=config,
                root=root,
                schedule=schedule,
                # KFP's driver fills in a placeholder only where it is the whole constant value of a task's input.
                scheduled_time=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
                zone=zone,
                lag_days=lag_days,
                kfp_run=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
                backend=backend,
            )
        )
        _train_and_evaluate(settings, settle, selected, config, backend)

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


def _train_and_evaluate(
    settings: RunConfig, settle: Settle, selected: dsl.PipelineTask, config: str, backend: str
) -> None:
    """The steps after `select-window`, in a pipeline that is being built."""
    common = {
        "config": config,
        "run_uri": selected.outputs["run_uri"],
        "backend": backend,
        "fingerprint": selected.outputs["fingerprint"],
        "window": selected.outputs["window"],
    }
    model = settle(prepare_backbone(**common)).outputs["backbone"]
    for epoch, stage in enumerate(stage_names(settings.recipe.policies)):
        model = settle(_named(stage, train_epoch)(**common, epoch=epoch, parent=model)).outputs["model"]
    settle(evaluate(**common, model=model))


def _named(stage: str, component: PythonComponent) -> PythonComponent:
    """The same component under the stage's name, which KFP gives the task."""
    return PythonComponent(dataclasses.replace(component.component_spec, name=stage), component.python_func)
