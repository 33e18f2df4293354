"""The door of the step that trains one epoch: `train-frozen` and `train-cotrain` are both it."""

from kfp.dsl import Dataset, Input, Model, Output, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def train_epoch(
    config: str,
    run_uri: str,
    backend: str,
    fingerprint: str,
    epoch: int,
    window: Input[Dataset],
    parent: Input[Model],
    model: Output[Model],
) -> None:
    """Train one epoch over the window, with the policy that the recipe names for it.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        backend: Where the PyTorchJob runs: `kubernetes`, or `local`.
        fingerprint: Of the window's files: equal content may hit KFP's cache, changed content can't.
        epoch: Which of `recipe.policies`, from 0.
        window: The window document.
        parent: The backbone, or the model of the epoch before.
        model: The trained model.
    """
    from thaw.components.train_epoch.step import run

    run(config, run_uri, backend, epoch, window, parent, model)
