"""The pipeline: select the window, prepare the backbone, freeze, thaw, evaluate."""

import dataclasses

from kfp import dsl
from kfp.dsl.python_component import PythonComponent

from thaw.components.config import RunConfig
from thaw.components.evaluate.component import evaluate
from thaw.components.prepare_backbone.component import prepare_backbone
from thaw.components.runs import stage_names
from thaw.components.select_window.component import select_window
from thaw.components.train_epoch.component import train_epoch


def training_pipeline(settings: RunConfig, num_retries: int = 0) -> dsl.base_component.BaseComponent:
    """The pipeline of one run, as KFP compiles it.

    The policies and the image of `settings` are compiled in; all else travels in the parameter `config`.

    Args:
        settings: The run's configuration.
        num_retries: How often KFP tries a failed step again; each try resumes from the stage's last checkpoint.
    """

    def task(step: dsl.PipelineTask) -> dsl.PipelineTask:
        # Off for every step: the content under equal parameters can change, and a run's folder is its own.
        step.set_caching_options(enable_caching=False).set_container_image(settings.cluster.image)
        if num_retries:
            # KFP's own ceiling is an hour from the first try's start: a longer training would never be tried again.
            step.set_retry(num_retries, backoff_duration="60s", backoff_factor=2, backoff_max_duration="86400s")
        return step

    @dsl.pipeline(name="thaw", description="Freeze, then thaw: two epochs over one window of days.")
    def thaw(config: str, run_uri: str, date: str, backend: str = "kubernetes") -> None:
        window = task(select_window(config=config, run_uri=run_uri, date=date))
        common = {
            "config": config,
            "run_uri": run_uri,
            "backend": backend,
            "fingerprint": window.outputs["Output"],
            "window": window.outputs["window"],
        }
        model = task(prepare_backbone(**common)).outputs["backbone"]
        for epoch, stage in enumerate(stage_names(settings.recipe.policies)):
            model = task(_named(stage, train_epoch)(**common, epoch=epoch, parent=model)).outputs["model"]
        task(evaluate(**common, model=model))

    return thaw


def _named(stage: str, component: PythonComponent) -> PythonComponent:
    """The same component under the stage's name, which KFP gives the task."""
    return PythonComponent(dataclasses.replace(component.component_spec, name=stage), component.python_func)
