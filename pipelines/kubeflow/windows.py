"""What a schedule will run: its ticks, the D of each, and the days that follow from it."""

import datetime
import itertools
import zoneinfo
from dataclasses import dataclass

from rich.table import Table

from thaw.components.config import RunConfig
from thaw.components.select_window.calendar import scheduled_day
from thaw.components.select_window.cron import Cron
from thaw.components.select_window.logs import wanted_logs

NUM_WINDOWS = 7
"""That are shown before a schedule is made."""

CHECKED_DAYS = 2 * 366
"""How far ahead a schedule's dates are checked: past every clock change of two years, and a turn of each."""


@dataclass(frozen=True)
class Timing:
    """When a schedule runs, and for which D."""

    cron: Cron
    zone: zoneinfo.ZoneInfo
    lag_days: int

    def day(self, tick: datetime.datetime) -> datetime.date:
        """D of a tick."""
        return scheduled_day(tick, self.zone, self.lag_days)

    def end_of(self, day: datetime.date) -> datetime.datetime:
        """The last second whose D is `day`: every tick after it has a later D, and no other tick has."""
        midnight = datetime.time(tzinfo=self.zone)
        after = datetime.datetime.combine(day + datetime.timedelta(days=self.lag_days + 1), midnight)
        return after.astimezone(datetime.UTC) - datetime.timedelta(seconds=1)


def check_timing(timing: Timing, config: RunConfig, now: datetime.datetime) -> None:
    """Pass a timing that gives each D once, none before its evaluation days are over, and leaves out none by accident.

    Raises:
        ValueError: the lag is too short, two ticks have one D, or a clock change moves D by a day.
    """
    num_days = config.data.window.num_evaluation_days
    if timing.lag_days < num_days:
        raise ValueError(
            f"--lag-days {timing.lag_days}: D and the days after it are evaluated, {num_days} in all "
            f"(data.window.num_evaluation_days), and must be over at the scheduled time; give at least {num_days}"
        )
    until = now + datetime.timedelta(days=CHECKED_DAYS)
    ticks = itertools.takewhile(lambda tick: tick < until, timing.cron.after(now))
    for earlier, later in itertools.pairwise(ticks):
        first, second = timing.day(earlier), timing.day(later)
        ticks_at = f"cron '{timing.cron.text}' ticks at {_local(earlier, timing)} and {_local(later, timing)}"
        if earlier.date() == later.date() and first == second:
            raise ValueError(f"{ticks_at}, and both are for D = {first}; let each day have one tick at most")
        if earlier.date() != later.date() and later.date() - earlier.date() != second - first:
            raise ValueError(
                f"{ticks_at}, for D = {first} and {second}: the zone's clock change carries the tick over midnight; "
                f"choose a time of day that stays on one side"
            )


def _local(instant: datetime.datetime, timing: Timing) -> str:
    return f"{instant.astimezone(timing.zone):%Y-%m-%d %H:%M:%S %Z}"


def windows_table(timing: Timing, config: RunConfig, start: datetime.datetime, num: int = NUM_WINDOWS) -> Table:
    """The next ticks after a start, each with its D and the days that its run will read.

    Raises:
        ValueError: the calendar does not reach that far back.
    """
    is_utc = timing.zone.key == "UTC"
    names = {"training": "window", "evaluation": "evaluation days", "engagements": "days of the backbone"}
    rows = []
    for tick in itertools.islice(timing.cron.after(start), num):
        day = timing.day(tick)
        spans = {log.name: _span(log.days) for log in wanted_logs(config, "", day) if log.name in names}
        local = [] if is_utc else [f"{tick.astimezone(timing.zone):%a %Y-%m-%d %H:%M %Z}"]
        rows.append(([f"{tick:%a %Y-%m-%d %H:%M:%S}", *local, str(day), *spans.values()], list(spans)))
    titles = [names[name] for name in rows[0][1]] if rows else []
    table = Table("scheduled for (UTC)", *([] if is_utc else [f"in {timing.zone.key}"]), "D", *titles)
    table.box, table.pad_edge = None, False
    for cells, _ in rows:
        table.add_row(*cells)
    return table


def _span(days: tuple[datetime.date, ...]) -> str:
    return str(days[0]) if len(days) == 1 else f"{days[0]} ... {days[-1]}"
