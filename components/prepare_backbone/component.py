"""The door of the step `prepare-backbone`."""

from kfp.dsl import Dataset, Input, Model, Output, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def prepare_backbone(
    config: str, run_uri: str, backend: str, fingerprint: str, window: Input[Dataset], backbone: Output[Model]
) -> None:
    """Pretrain the tables on the engagements before the window, or fetch published ones.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        backend: Where a PyTorchJob runs: `kubernetes`, or `local`.
        fingerprint: Of the window's files: equal content may hit KFP's cache, changed content can't.
        window: The window document.
        backbone: The pretrained tables.
    """
    from thaw.components.prepare_backbone.step import run

    run(config, run_uri, backend, window, backbone)
