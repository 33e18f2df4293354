"""The door of the step `publish-backbone`."""

from kfp.dsl import Input, Model, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def publish_backbone(config: str, run_uri: str, fingerprint: str, backbone: Input[Model]) -> None:
    """Copy the backbone to where other runs fetch it, its complete mark last.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        fingerprint: Of the window's files: equal content may hit KFP's cache, changed content can't.
        backbone: The pretrained tables.
    """
    from thaw.components.publish_backbone.step import run

    run(config, run_uri, backbone)
