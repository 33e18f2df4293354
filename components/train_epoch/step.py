"""The step of `train-frozen` and `train-cotrain`: one epoch, one PyTorchJob."""

from typing import Any, Protocol

from thaw.components.config import from_parameter
from thaw.components.launcher.stage_job import run_stage_job, takes_up
from thaw.components.runs import check_same_config, stage, stage_names


class Artifact(Protocol):
    """What the step needs of KFP's artifacts: the folder of a stage's attempt."""

    uri: str
    metadata: dict[str, Any]


def run(
    config: str, run_uri: str, backend: str, epoch: int, window: Artifact, parent: Artifact, model: Artifact
) -> None:
    """Train epoch number `epoch` of the recipe, from the parent's tables or model on.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        backend: Where the job runs.
        epoch: Which of `recipe.policies`, from 0.
        window: The attempt of select-window.
        parent: The attempt of prepare-backbone, or of the epoch before.
        model: Gets the attempt's folder and figures.

    Raises:
        NotCommittedError: an input is not committed.
        ValueError: the parent was trained under a configuration that disagrees.
        JobFailed: the job did not succeed.
    """
    settings = from_parameter(config)
    name, policy = stage_names(settings.recipe.policies)[epoch], settings.recipe.policies[epoch]
    inputs = {"window": window.uri, "parent": parent.uri}
    with stage(settings, run_uri, name, inputs, takes_up=takes_up(backend)) as current:
        if not current.committed:
            check_same_config(current.manifests["parent"].config, settings)
            figures = run_stage_job(
                current,
                settings,
                backend,
                "train",
                checkpoint_uri=current.input_uri("parent", "model"),
                policy=policy,
                epoch=epoch,
            )
            figures = {"policy": policy, **figures}
            current.commit(figures=figures, outputs={"model": "model"}, window=current.manifests["window"].window)
    model.uri = current.uri
    model.metadata.update(
        {key: value for key, value in current.figures.items() if isinstance(value, (int, float, str))}
    )
