"""Puts a schedule into force, in the place of the one that has its name.

Kubeflow can't change a recurring run, so another takes its place:

    1  the new one is made, disabled; it begins after the last day that the old one was triggered for
    2  the old one is disabled; has it ticked since 1, the new one is made again
    3  days that fell due meanwhile, or by the change, the newest excepted, are submitted: Kubeflow runs the newest
       missed tick alone
    4  the new one is enabled
    5  the old one is deleted; its runs go on

A command that is interrupted at any point leaves what the next one needs to go on from there. Of commands that make
one at the same time, the one that was created first stays, and each other command deletes its own. Should two ticks
have one D in spite of this, the later one finds it claimed and trains nothing (`select_window/step.py`).
"""

import datetime
import itertools
import time
from collections.abc import Callable, Sequence

from thaw.components import runs, storage
from thaw.pipelines.kubeflow.client import RecurringRun, Server
from thaw.pipelines.kubeflow.schedule import Schedule, digest_of, is_enabled, start_of, timing_of
from thaw.pipelines.kubeflow.submit import SETTLE_S, request, submit

Say = Callable[[str], None]
Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """The time, UTC."""
    return datetime.datetime.now(datetime.UTC)


def put(
    server: Server,
    wanted: Schedule,
    say: Say,
    now: Now = utc_now,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Have exactly this schedule under its name, enabled. Asking twice is asking once.

    Args:
        server: Of Kubeflow.
        wanted: The schedule.
        say: Takes each line for the user.
        now: Tells the time.
        pause: Waits.

    Raises:
        ValueError: a recurring run of that name was made by others, or is damaged; or another command has put another
            schedule of that name into force meanwhile.
        ServerError: the server is not there, or refuses.
    """
    found = made_for(server, wanted.name)
    for recurring in found:
        timing_of(recurring)
    same = [recurring for recurring in found if digest_of(recurring) == wanted.digest]
    others = [recurring for recurring in found if recurring not in same]
    new = next(filter(is_enabled, same), None)
    if new is not None:
        words = "is in force"
    elif others:
        new, words = _take_over(server, wanted, others, same, say, now), "is replaced"
    elif same:
        new, words = same[0], "is enabled again"
        server.set_enabled(new, True)
    else:
        start = wanted.timing.end_of(_last_day_done(wanted, now()))
        new, words = _make(server, wanted, start, enabled=True), "is made"
    known = {recurring.recurring_run_id for recurring in found}
    if new.recurring_run_id not in known:
        pause(SETTLE_S)
        made = [recurring for recurring in made_for(server, wanted.name) if recurring.recurring_run_id not in known]
        first = min(made, key=lambda recurring: (recurring.created_at, recurring.recurring_run_id), default=None)
        if first is not None and first.recurring_run_id != new.recurring_run_id:
            _remove(server, new)
            if digest_of(first) != wanted.digest:
                raise ValueError(
                    f"schedule {wanted.name}: another command has made another schedule of this name at the same time; "
                    f"see `thaw schedules`, and ask again if this is the one that you want"
                )
            say(f"schedule {wanted.name} is being put into force by another command")
            return
    there = {recurring.recurring_run_id: recurring for recurring in made_for(server, wanted.name)}
    if new.recurring_run_id not in there or not is_enabled(there[new.recurring_run_id]):
        raise ValueError(f"schedule {wanted.name}: another command has changed it meanwhile; see `thaw schedules`")
    for recurring in found:
        if recurring.recurring_run_id != new.recurring_run_id:
            _remove(server, recurring)
    say(f"schedule {wanted.name} {words}")


def first_after(server: Server, wanted: Schedule, now: datetime.datetime) -> datetime.datetime:
    """After which instant the first run of a schedule comes, were it put into force now. Changes nothing.

    Raises:
        ValueError: as `put`.
        ServerError: the server is not there, or refuses.
    """
    found = made_for(server, wanted.name)
    same = [recurring for recurring in found if digest_of(recurring) == wanted.digest]
    if any(map(is_enabled, same)):
        return now
    if found:
        start = wanted.timing.end_of(max(_last_day(server, recurring) for recurring in found))
    else:
        start = wanted.timing.end_of(_last_day_done(wanted, now))
    missed = wanted.timing.cron.latest(now)
    return start if missed is None or missed <= start else missed - datetime.timedelta(seconds=1)


def remove(server: Server, name: str, say: Say) -> None:
    """Have no schedule of this name. Runs that it has triggered go on.

    Raises:
        ValueError: there is none, or a recurring run of that name was made by others.
        ServerError: the server is not there, or refuses.
    """
    found = made_for(server, name)
    if not found:
        raise ValueError(f"no schedule {name} at {server.host}; `thaw schedules` lists them")
    for recurring in found:
        _remove(server, recurring)
    say(f"schedule {name} is deleted")


def made_for(server: Server, name: str) -> list[RecurringRun]:
    """The recurring runs of a schedule, the oldest first: one, or more where a replacement was interrupted.

    Raises:
        ValueError: one of that name was made by others.
    """
    found = server.recurring_runs(name)
    for recurring in found:
        if digest_of(recurring) is None:
            raise ValueError(
                f"{server.host} has a recurring run {name} ({recurring.recurring_run_id}) that `thaw schedule` did not "
                f"make; choose another name, or delete it"
            )
    return found


def _take_over(
    server: Server,
    wanted: Schedule,
    others: Sequence[RecurringRun],
    same: Sequence[RecurringRun],
    say: Say,
    now: Now,
) -> RecurringRun:
    new = _made_after(server, wanted, others, same)
    for other in filter(is_enabled, others):
        server.set_enabled(other, False)
    new = _made_after(server, wanted, others, [new])
    for day in [] if wanted.catch_up else _left_out(wanted, others, new, now()):
        _submit(server, wanted, day, say)
    server.set_enabled(new, True)
    return new


def _made_after(
    server: Server, wanted: Schedule, others: Sequence[RecurringRun], candidates: Sequence[RecurringRun]
) -> RecurringRun:
    """The wanted recurring run, disabled, that begins where others ended; one of the candidates, or made now."""
    start = wanted.timing.end_of(max(_last_day(server, other) for other in others))
    fitting = [candidate for candidate in candidates if start_of(candidate) == start]
    new = fitting[0] if fitting else _make(server, wanted, start, enabled=False)
    for candidate in candidates:
        if candidate is not new:
            server.delete_recurring_run(candidate)
    return new


def _make(server: Server, wanted: Schedule, start: datetime.datetime, enabled: bool) -> RecurringRun:
    experiment_id = server.experiment(wanted.placement.experiment)
    return server.create_recurring_run(wanted.body(experiment_id, start, enabled))


def _remove(server: Server, recurring: RecurringRun) -> None:
    if is_enabled(recurring):
        server.set_enabled(recurring, False)
    server.delete_recurring_run(recurring)


def _last_day(server: Server, recurring: RecurringRun) -> datetime.date:
    """The last D that is not to be run again once this recurring run is gone."""
    timing = timing_of(recurring)
    run = server.last_run(recurring)
    if run is None:
        return timing.day(start_of(recurring))
    # Of a server that does not keep the scheduled time it is the year 1970; the run was made soon after its tick.
    at = run.scheduled_at if run.scheduled_at and run.scheduled_at.year > 1970 else run.created_at
    return timing.day(timing.cron.latest(at) or at)


def _last_day_done(wanted: Schedule, now: datetime.datetime) -> datetime.date:
    """The last D that a schedule without a predecessor is not to run."""
    latest = wanted.timing.cron.latest(now)
    done = wanted.timing.day(latest or now)
    claimed = [day for day in _claimed_days(wanted) if done < day <= wanted.timing.day(now)]
    return max([done, *claimed])


def _claimed_days(wanted: Schedule) -> list[datetime.date]:
    days = []
    for name in storage.list_dirs(storage.join(wanted.root, "runs")):
        prefix, text = name[: len(wanted.name) + 1], name[len(wanted.name) + 1 :]
        if prefix == f"{wanted.name}-":
            try:
                days.append(datetime.date.fromisoformat(text))
            except ValueError:
                continue  # another run, whose name begins like the schedule's
    return days


def _left_out(
    wanted: Schedule, others: Sequence[RecurringRun], new: RecurringRun, now: datetime.datetime
) -> list[datetime.date]:
    """The days that nobody has run, but for the newest, which Kubeflow runs when `new` is enabled.

    They fell due since it was made, or by the change itself, as where D moves on by a smaller lag. Days whose ticks the
    others had missed by then are no such days: a schedule that does not catch up leaves them out.
    """
    ticked = [(timing, timing.cron.latest(new.created_at)) for timing in map(timing_of, others)]
    missed = [wanted.timing.end_of(timing.day(tick)) for timing, tick in ticked if tick]
    ticks = itertools.takewhile(lambda tick: tick <= now, wanted.timing.cron.after(max([start_of(new), *missed])))
    return [wanted.timing.day(tick) for tick in ticks][:-1]


def _submit(server: Server, wanted: Schedule, day: datetime.date, say: Say) -> None:
    """Start the run of a day that the schedule leaves out, under the name that claims the day."""
    asked = request(
        wanted.config,
        wanted.root,
        day,
        wanted.placement,
        run_id=f"{wanted.name}-{day}",
        num_retries=wanted.num_retries,
        kind=wanted.kind,
    )
    if storage.exists(storage.join(asked.run_uri, "run.json")) and "kfp_run" in runs.read_run(asked.run_uri).extra:
        return
    run, _ = submit(server, asked)
    say(f"D = {day} fell due while the schedule was being replaced: {server.run_url(run.run_id)}")
