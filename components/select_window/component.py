"""The door of the step `select-window`."""

from kfp.dsl import Dataset, Output, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def select_window(config: str, run_uri: str, date: str, window: Output[Dataset]) -> str:
    """Pin every file of the run: the window's days, the evaluation days, the backbone's days.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        date: D, the first day that training never reads, YYYY-MM-DD.
        window: The window document.

    Returns:
        The fingerprint of all pinned files.
    """
    from thaw.components.select_window.step import run

    return run(config, run_uri, date, window)
