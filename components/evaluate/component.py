"""The door of the step `evaluate`."""

from kfp.dsl import HTML, Dataset, Input, Metrics, Model, Output, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def evaluate(
    config: str,
    run_uri: str,
    backend: str,
    fingerprint: str,
    window: Input[Dataset],
    model: Input[Model],
    metrics: Output[Metrics],
    report: Output[HTML],
) -> None:
    """Score the evaluation days and report.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        backend: Where the PyTorchJob runs: `kubernetes`, or `local`.
        fingerprint: Of the window's files: equal content may hit KFP's cache, changed content can't.
        window: The window document.
        model: The model of the last epoch.
        metrics: The main figures.
        report: One self-contained page.
    """
    from thaw.components.evaluate.step import run

    run(config, run_uri, backend, window, model, metrics, report)
