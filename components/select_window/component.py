"""The doors of the step `select-window`: of a run whose date is given, and of one whose date its schedule gives."""

from typing import NamedTuple

from kfp.dsl import Dataset, Output, component

from thaw.components.config.training import DEFAULT_IMAGE


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def select_window(
    config: str,
    run_uri: str,
    date: str,
    backend: str,
    kind: str,
    window: Output[Dataset],
) -> NamedTuple("Selected", [("run_uri", str), ("fingerprint", str)]):  # type: ignore[valid-type]
    """Pin every file of the run: the window's days, the evaluation days, the backbone's days.

    Args:
        config: The run's configuration document, as JSON.
        run_uri: Folder of the run.
        date: D, the first day that training never reads, YYYY-MM-DD.
        backend: Where the run's PyTorchJobs run, for its record.
        kind: Which stages the run has, for its record.
        window: The window document.

    Returns:
        run_uri: Folder of the run, for all later steps.
        fingerprint: Of all pinned files.
    """
    from thaw.components.select_window.step import run

    return run(config, run_uri, date, backend, window, kind)


@component(base_image=DEFAULT_IMAGE, install_kfp_package=False)
def select_scheduled_window(
    config: str,
    root: str,
    schedule: str,
    scheduled_time: str,
    cron: str,
    zone: str,
    lag_days: int,
    kfp_run: str,
    backend: str,
    kind: str,
    window: Output[Dataset],
) -> NamedTuple("Selected", [("run_uri", str), ("fingerprint", str)]):  # type: ignore[valid-type]
    """Resolve the date of a scheduled run, claim it, and pin every file of the run.

    Args:
        config: The run's configuration document, as JSON.
        root: Where `runs/` lies. The run's folder is `<root>/runs/<schedule>-<D>`.
        schedule: Name of the schedule. Of its runs, one at most gets each D.
        scheduled_time: For when the run was scheduled, YYYY-MM-DDTHH:MM:SSZ.
        cron: Of the schedule: six fields, UTC.
        zone: Whose calendar turns that instant into a date.
        lag_days: How many days D lies before that date.
        kfp_run: ID of the run in Kubeflow, by which a retry of it is known.
        backend: Where the run's PyTorchJobs run, for its record.
        kind: Which stages the run has, for its record.
        window: The window document.

    Returns:
        run_uri: Folder of the run, for all later steps.
        fingerprint: Of all pinned files.
    """
    from thaw.components.select_window.step import run_scheduled

    return run_scheduled(config, root, schedule, scheduled_time, cron, zone, lag_days, kfp_run, backend, window, kind)
