"""What a run would launch, without launching it."""

from typing import Any

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.job import training_job
from thaw.components.runs import config_stages, stage_names
from thaw.pipelines.data_sets import data_uri


def training_manifests(config: RunConfig, root: str, run_id: str, kind: str = "whole") -> list[dict[str, Any]]:
    """The PyTorchJob of every training stage's first attempt, in order: what the backend would be handed.

    Args:
        config: The run's configuration.
        root: Where `runs/` lies.
        run_id: Name of the run.
        kind: Which stages it has.
    """
    config = config.model_copy(update={"data": config.data.model_copy(update={"uri": data_uri(config, root)})})

    def attempt(stage: str) -> str:
        return storage.join(root, "runs", run_id, stage, "attempt-1")

    def manifest(stage: str, **spec: Any) -> dict[str, Any]:
        window_uri = storage.join(attempt("select-window"), "window.json")
        job = training_job(
            config, 1, run_id=run_id, stage=stage, window_uri=window_uri, output_uri=attempt(stage), **spec
        )
        return pytorchjob.render(job)

    manifests = []
    fetch = config.backbone.fetch
    if fetch:
        # A backbone under a prefix is found when the step runs.
        model_uri = fetch.uri or storage.join(str(fetch.prefix_uri), "<newest>")
    else:
        manifests.append(manifest("prepare-backbone", kind="pretrain"))
        model_uri = storage.join(attempt("prepare-backbone"), "model")
    policies = config.recipe.policies
    for epoch, (stage, policy) in enumerate(zip(stage_names(policies), policies, strict=True)):
        manifests.append(manifest(stage, kind="train", checkpoint_uri=model_uri, policy=policy, epoch=epoch))
        model_uri = storage.join(attempt(stage), "model")
    manifests.append(manifest("evaluate", kind="score", checkpoint_uri=model_uri))
    stages = config_stages(config, kind)
    return [made for made in manifests if made["metadata"]["labels"]["thaw/stage"] in stages]
