"""The door of the step `promote`."""

from kfp.dsl import Input, Metrics, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def promote(config: str, run_uri: str, fingerprint: str, metrics: Input[Metrics]) -> None:
    """Claim the run's date for it, if its evaluation passes the gate; if not, say why.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        fingerprint: Of the window's files: equal content may hit KFP's cache, changed content can't.
        metrics: What evaluate measured.
    """
    from thaw.components.promote.step import run

    run(config, run_uri, metrics)
