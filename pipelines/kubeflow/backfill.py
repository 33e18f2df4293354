"""Days that no schedule has run: one explicit run a day, a few at a time."""

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from thaw.components import runs, storage
from thaw.pipelines.kubeflow.client import Run, Server, ServerError
from thaw.pipelines.kubeflow.submit import ENDED, Request, ended_badly, submit


@dataclass(frozen=True)
class Day:
    """What is there of a day's run."""

    asked: Request
    state: Literal["done", "active", "failed", "absent"]
    run_id: str | None = None
    """Of the active run in Kubeflow."""


def days_between(first: datetime.date, last: datetime.date) -> list[datetime.date]:
    """The days from the first to the last one, both included.

    Raises:
        ValueError: the last one comes first.
    """
    if last < first:
        raise ValueError(f"--from {first} --to {last}: the last day comes before the first")
    return [datetime.date.fromordinal(number) for number in range(first.toordinal(), last.toordinal() + 1)]


def look(server: Server, asked: Request) -> Day:
    """What is there of a day's run, in its folder and in Kubeflow. Changes nothing.

    Raises:
        ValueError: it is not done, and was begun with another configuration.
        ServerError: the server is not there, or refuses.
    """
    found = server.find_runs(asked.run_id)
    if storage.exists(storage.join(asked.run_uri, "run.json")):
        status = runs.run_status(asked.run_uri)
        if status.state == "committed":
            return Day(asked, "done")
        runs.check_same_run(asked.run_uri, status.record.config, asked.config)
        claimant = status.record.extra.get("kfp_run")  # of a schedule, whose runs Kubeflow names itself
        found = [*found, *_run(server, claimant)] if claimant else found
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
        Why runs failed that ended meanwhile.
    """
    active = {day.run_id: day.asked.run_id for day in days if day.run_id is not None}
    failures: list[str] = []
    for day in days:
        if day.state in ("done", "active"):
            say(f"{day.asked.date}: {day.state}, left alone")
            continue
        while len(active) >= max_concurrent:
            for run in _ended(server, list(active)):
                fault = ended_badly(run)
                say(fault or f"run {active[run.run_id]} succeeded")
                failures += [fault] if fault else []
                del active[run.run_id]
            if len(active) >= max_concurrent:
                pause(poll_s)
        run, is_new = submit(server, day.asked, again=True)
        say(f"{day.asked.date}: {'started' if is_new else 'there'}, {server.run_url(run.run_id)}")
        active[run.run_id] = day.asked.run_id
    return failures


def _ended(server: Server, run_ids: Sequence[str]) -> Iterator[Run]:
    for run_id in run_ids:
        run = server.run(run_id, patient=True)
        if run.state in ENDED:
            yield run


def _run(server: Server, run_id: str) -> list[Run]:
    try:
        return [server.run(run_id)]
    except ServerError as error:
        if error.status != 404:
            raise
        return []  # Kubeflow has forgotten it
