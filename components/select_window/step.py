"""The step `select-window`: the first of a run, and the only one that looks for files."""

import datetime
from typing import Any, NamedTuple, Protocol

from thaw.components import storage
from thaw.components.config import RunConfig, from_parameter
from thaw.components.events import emit
from thaw.components.runs import RunRecord, check_same_run, open_run, refusing, stage
from thaw.components.select_window.calendar import parse_date, parse_instant, parse_zone, scheduled_day
from thaw.components.select_window.cron import parse_cron
from thaw.components.select_window.selection import select
from thaw.components.select_window.window import FILE_NAME

STAGE = "select-window"
_FIRST_YEAR = 2000
"""No run was scheduled for an earlier one: a server that does not keep the time gives 1970, or the year 1."""


class WindowArtifact(Protocol):
    """What the step needs of KFP's artifact."""

    uri: str
    metadata: dict[str, Any]


class Selected(NamedTuple):
    """What the later steps take from this one."""

    run_uri: str
    fingerprint: str
    """Of all pinned files."""


def run(config: str, run_uri: str, date: str, backend: str, window: WindowArtifact, kind: str = "whole") -> Selected:
    """Writes the window document into a new attempt, and commits it.

    A run that was started in Kubeflow's own UI has no record yet, and gets it here.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        date: D, YYYY-MM-DD.
        backend: Where the run's jobs run, for the record.
        window: Gets the attempt's folder, and the window's summary.
        kind: Which stages the run has, for the record.

    Raises:
        RefusedError: the date is none, or the configuration is not valid; nothing was listed by then, and all that is
            written is the mark that ends a retry with the same words.
        ValueError: the run was begun with another configuration, date or kind; nothing was listed or written by then.
        WindowError: days or files are not there, or broken.
    """
    with refusing(run_uri, STAGE, config, date):
        day = parse_date(date)
        settings = from_parameter(config)
    record = open_run(run_uri, settings, {"date": str(day), "backend": backend, "kind": kind})
    check_same_run(run_uri, record.config, settings)
    for parameter, value in (("date", date), ("kind", kind)):
        if record.extra.get(parameter, value) != value:
            begun = record.extra[parameter]
            raise ValueError(f"{parameter}: '{value}', and {run_uri} was begun for {begun}; choose another run id")
    return _select(settings, run_uri, day, window)


def run_scheduled(
    config: str,
    root: str,
    schedule: str,
    scheduled_time: str,
    cron: str,
    zone: str,
    lag_days: int,
    kfp_run: str,
    backend: str,
    window: WindowArtifact,
    kind: str = "whole",
) -> Selected:
    """Resolves D, claims it for this run of Kubeflow, writes the window document and commits it.

    The claim is the run's record, which is created or there: a schedule's D is never run twice, whatever becomes of
    the schedule. A retry in Kubeflow has the same `kfp_run`, and goes on.

    Args:
        config: The run's document, as `to_parameter` gave it.
        root: Where `runs/` lies.
        schedule: Name of the schedule; begins the run's id.
        scheduled_time: For when the run was scheduled, YYYY-MM-DDTHH:MM:SSZ.
        cron: Of the schedule. A time that is none of its ticks is that of the run's creation, which Kubeflow gives
            where it can't tell the scheduled one; the tick before it is then taken.
        zone: Whose calendar turns that into a date.
        lag_days: How many days D lies before that date.
        kfp_run: ID of the run in Kubeflow.
        backend: Where the run's jobs run, for the record.
        window: Gets the attempt's folder, and the window's summary.
        kind: Which stages the run has, for the record.

    Raises:
        ValueError: a parameter is not what it should be, or D has been claimed by another run; nothing was listed or
            written by then.
        WindowError: days or files are not there, or broken.
    """
    instant = parse_instant(scheduled_time)
    if instant.year < _FIRST_YEAR:
        raise ValueError(f"scheduled_time: {scheduled_time} is none of a schedule; Kubeflow tells it as of 2.17")
    tick = parse_cron(cron).latest(instant) or instant
    day = scheduled_day(tick, parse_zone(zone), lag_days)
    for parameter, text in (("root", root), ("schedule", schedule), ("kfp_run", kfp_run)):
        if not text.strip() or "{{" in text or "[[" in text:
            raise ValueError(f"{parameter}: '{text}' is empty, or a placeholder that was not expanded")
    settings = from_parameter(config)
    if tick != instant:
        message = (
            f"scheduled_time {scheduled_time} is no tick of '{cron}', and taken for the tick at {tick.isoformat()}"
        )
        emit("warning", stage=STAGE, message=message)
    if lag_days < (num_days := settings.data.window.num_evaluation_days):
        message = f"lag_days is {lag_days}: at the scheduled time not all {num_days} evaluation days from D on are over"
        emit("warning", stage=STAGE, message=message)
    run_uri = storage.join(root, "runs", f"{schedule}-{day}")
    asked = {"schedule": schedule, "scheduled_time": scheduled_time, "cron": cron, "zone": zone, "lag_days": lag_days}
    extra = {"date": str(day), "backend": backend, "kind": kind, "kfp_run": kfp_run, **asked}
    record = open_run(run_uri, settings, extra)
    if record.extra.get("kfp_run") != kfp_run:
        raise ValueError(
            f"D = {day} of schedule {schedule} is claimed by {_claimant(record)} ({run_uri}); "
            f"Kubeflow's run {kfp_run} must not run it a second time"
        )
    check_same_run(run_uri, record.config, settings)
    return _select(settings, run_uri, day, window)


def _claimant(record: RunRecord) -> str:
    claimant = record.extra.get("kfp_run")
    return f"Kubeflow's run {claimant}" if claimant else f"a run that was submitted at {record.created_at}"


def _select(settings: RunConfig, run_uri: str, day: datetime.date, window: WindowArtifact) -> Selected:
    with stage(settings, run_uri, STAGE) as attempt:
        selected = select(settings, day)
        if missing := [*selected.missing_engagement_days, *selected.missing_days]:
            days = ", ".join(map(str, missing))
            emit("warning", stage=STAGE, message=f"{len(missing)} missing days, as the configuration allows: {days}")
        storage.create_bytes(storage.join(attempt.uri, FILE_NAME), selected.model_dump_json(indent=1).encode())
        summary = selected.summary()
        attempt.commit(outputs={"window": FILE_NAME}, window=summary)
    window.uri = attempt.uri
    window.metadata.update(summary)
    return Selected(run_uri, selected.fingerprint)
