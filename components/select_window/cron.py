"""Kubeflow's cron: six fields, seconds first, in UTC, with the rules of the Go library that its controller reads it by.

Source: robfig/cron of version 1, `cron.Parse`, as kubeflow/pipelines 2.17 calls it
(backend/src/crd/controller/scheduledworkflow/util/cron_schedule.go).
"""

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

DAY = datetime.timedelta(days=1)
REACH_DAYS = 8 * 366 + 1
"""How far the next tick is looked for: a leap day can be eight years away."""

_FIELDS = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = {
    "month": {name: number for number, name in enumerate(_MONTHS, start=1)},
    "day of week": {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))},
}


@dataclass(frozen=True)
class Cron:
    """A set of instants, the ticks, in whole seconds of UTC."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    both: bool
    """A day must be in `days` and in `weekdays`, where one of the two is a star; else in either."""

    def after(self, instant: datetime.datetime) -> Iterator[datetime.datetime]:
        """The ticks strictly after an instant, in order, of the next eight years."""
        start = instant.astimezone(datetime.UTC)
        for offset in range(REACH_DAYS):
            day = start.date() + offset * DAY
            if self._has(day):
                ticks = self._ticks(day)
                yield from (tick for tick in ticks if tick > start)

    def next(self, instant: datetime.datetime) -> datetime.datetime:
        """The first tick strictly after an instant.

        Raises:
            ValueError: there is none, as the day never comes.
        """
        for tick in self.after(instant):
            return tick
        raise ValueError(f"cron '{self.text}': no such day comes, as of {instant.date()}")

    def latest(self, instant: datetime.datetime) -> datetime.datetime | None:
        """The last tick at or before an instant."""
        end = instant.astimezone(datetime.UTC)
        for offset in range(REACH_DAYS):
            day = end.date() - offset * DAY
            if self._has(day) and (ticks := [tick for tick in self._ticks(day) if tick <= end]):
                return ticks[-1]
        return None

    def _has(self, day: datetime.date) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month and in_week if self.both else in_month or in_week

    def _ticks(self, day: datetime.date) -> Iterator[datetime.datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                for second in self.seconds:
                    yield datetime.datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=datetime.UTC)


def daily_cron(text: str) -> Cron:
    """The cron of a time of day.

    Args:
        text: HH:MM, UTC.

    Raises:
        ValueError: it is no time of day.
    """
    if not re.fullmatch(r"([01][0-9]|2[0-3]):[0-5][0-9]", text):
        raise ValueError(f"--daily: '{text}' is not a time of day; give HH:MM in UTC, as 06:00")
    hour, _, minute = text.partition(":")
    return parse_cron(f"0 {int(minute)} {int(hour)} * * *")


def parse_cron(text: str) -> Cron:
    """The cron that a text means to Kubeflow.

    Raises:
        ValueError: another number of fields than six, a value out of its range, or a day that never comes; with the
            right form.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        hint = f", as '0 {' '.join(parts)}'" if len(parts) == len(_FIELDS) - 1 else ", as '0 0 6 * * *'"
        raise ValueError(
            f"cron '{text}' has {len(parts)} fields; Kubeflow's has six, seconds first{hint}: "
            f"{', '.join(name for name, _, _ in _FIELDS)}"
        )
    fields = [_field(text, part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
    seconds, minutes, hours = (tuple(sorted(field)) for field in fields[:3])
    days, months, weekdays = map(frozenset, fields[3:])
    both = any(part.startswith(("*", "?")) for parts_of in (parts[3], parts[5]) for part in parts_of.split(","))
    cron = Cron(" ".join(parts), seconds, minutes, hours, days, months, weekdays, both)
    cron.next(datetime.datetime.now(datetime.UTC))
    return cron


def _field(text: str, part: str, name: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for item in part.split(","):
        span, slash, step = item.partition("/")
        first, dash, last = span.partition("-")
        try:
            if span in ("*", "?"):
                begin, end = low, high
            else:
                begin = _number(first, name)
                end = _number(last, name) if dash else high if slash else begin
            by = int(step) if slash else 1
            if not (low <= begin <= end <= high and by >= 1 and (not slash or (step.isascii() and step.isdigit()))):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"cron '{text}': {name} '{item}' is not in {low}-{high}; write a number, a range as "
                f"{low}-{high}, a step as */2, a list with commas, or *"
            ) from None
        values.update(range(begin, end + 1, by))
    return values


def _number(text: str, name: str) -> int:
    named = _NAMES.get(name, {}).get(text.lower())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)
