"""Days that no schedule has run: one explicit run a day, a few at a time."""

import datetime
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from thaw.components import runs, storage
from thaw.pipelines.kubeflow.client import Run, Server
from thaw.pipelines.kubeflow.submit import ENDED, Request, check_record, check_same, ended_badly, submit


@dataclass(frozen=True)
class Day:
    """What is there of a day's run."""

    asked: Request
    state: Literal["done", "active", "failed", "absent", "refused"]
    run_id: str | None = None
    """Of the active run in Kubeflow."""
    refusal: str | None = None
    """Why what is there is not the day's run: it has its name, and another configuration, root or kind."""


def days_between(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    """The days from the first to the last one, both included.

    Raises:
        ValueError: the last one comes first.
    """
    if last < first:
        raise ValueError(f"--from {first} --to {last}: the last day comes before the first")
    return [datetime.date.fromordinal(number) for number in range(first.toordinal(), last.toordinal() + 1)]


def look(server: Server, name: str, asked: Sequence[Request]) -> list[Day]:
    """What is there of each day's run, in its folder and in Kubeflow, all of which is listed once. Changes nothing.

    Args:
        server: Of Kubeflow.
        name: Of the schedule, with which the names of all these runs begin.
        asked: The days, all below one root.

    Raises:
        ServerError: the server is not there, or refuses.
        StorageError: the root can't be read.
    """
    listed = server.runs_named_like(f"{name}-")
    by_name: dict[str, list[Run]] = defaultdict(list)
    for run in listed:
        by_name[run.display_name].append(run)
    by_id = {run.run_id: run for run in listed}
    folders = {folder for day in asked[:1] for folder in storage.list_dirs(storage.join(day.root, "runs"))}
    days = []
    for day in asked:
        try:
            days.append(_look(server, day, by_name[day.run_id], by_id, day.run_id in folders))
        except ValueError as error:
            days.append(Day(day, "refused", refusal=str(error)))
    return days


def _look(server: Server, asked: Request, found: Sequence[Run], by_id: Mapping[str, Run], has_folder: bool) -> Day:
    for run in found:
        check_same(run, asked)
    if has_folder and storage.exists(storage.join(asked.run_uri, "run.json")):
        status = runs.run_status(asked.run_uri)
        check_record(status.record, asked)
        if status.state == "committed":
            return Day(asked, "done")
        claimant = status.record.extra.get("kfp_run")  # of a schedule, whose runs Kubeflow names itself
        if claimant:
            begun = by_id[claimant] if claimant in by_id else server.find_run(claimant)
            found = [*found, *([begun] if begun else [])]
    active = next((run for run in found if run.state not in ENDED), None)
    if active is not None:
        return Day(asked, "active", active.run_id)
    if any(run.state == "SUCCEEDED" for run in found):
        return Day(asked, "done")
    return Day(asked, "failed" if found else "absent")


def backfill(
    server: Server,
    days: Sequence[Day],
    max_concurrent: int,
    say: Callable[[str], None],
    poll_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Start the runs of all days that are neither done nor active; return when all are started.

    Args:
        server: Of Kubeflow.
        days: In the order in which they are started.
        max_concurrent: How many runs are active at once, those among the days that were active before included.
        say: Takes each line for the user.
        poll_s: Between two looks at the active runs.
        pause: Waits.

    Returns:
        Why days are not done: what is there is not theirs, or their runs ended meanwhile and failed.
    """
    active = {day.run_id: day.asked.run_id for day in days if day.run_id is not None}
    failures: list[str] = []

    def fail(words: str) -> None:
        say(words)
        failures.append(words)

    for day in days:
        if day.refusal is not None:
            fail(f"{day.asked.date}: {day.refusal}")
            continue
        if day.state in ("done", "active"):
            say(f"{day.asked.date}: {day.state}, left alone")
            continue
        while len(active) >= max_concurrent:
            for run in _ended(server, list(active)):
                if fault := ended_badly(run):
                    fail(fault)
                else:
                    say(f"run {active[run.run_id]} succeeded")
                del active[run.run_id]
            if len(active) >= max_concurrent:
                pause(poll_s)
        try:
            run, is_new = submit(server, day.asked, again=True)
        except ValueError as error:  # begun meanwhile, as another run
            fail(f"{day.asked.date}: {error}")
            continue
        say(f"{day.asked.date}: {'started' if is_new else 'there'}, {server.run_url(run.run_id)}")
        active[run.run_id] = day.asked.run_id
    return failures


def _ended(server: Server, run_ids: Sequence[str]) -> Iterator[Run]:
    for run_id in run_ids:
        run = server.run(run_id, patient=True)
        if run.state in ENDED:
            yield run
