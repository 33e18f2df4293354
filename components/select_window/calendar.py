"""Days by calendar arithmetic: no clock, no 24 hours. A time zone counts once, where an instant becomes a day."""

import datetime
import re
import zoneinfo

from thaw.components.refused import RefusedError

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")


def parse_date(text: str, parameter: str = "date") -> datetime.date:
    """The day that a text names.

    Args:
        text: YYYY-MM-DD, exactly.
        parameter: Where the text came from, for the message.

    Raises:
        RefusedError: any other text, an unexpanded macro of a scheduler among them; with the text as it came.
    """
    if _DATE.fullmatch(text):
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            raise RefusedError(f"{parameter}: '{text}' is no day of the calendar; give YYYY-MM-DD") from None
    raise RefusedError(f"{parameter}: '{text}' is not a date{_macro(text)}; give YYYY-MM-DD, as 2026-03-02")


def parse_instant(text: str, parameter: str = "scheduled_time") -> datetime.datetime:
    """The instant that a text names, in UTC.

    Args:
        text: YYYY-MM-DDTHH:MM:SSZ, or with an offset in place of Z, as RFC 3339 has it.
        parameter: Where the text came from, for the message.

    Raises:
        RefusedError: any other text; with the text as it came.
    """
    if _INSTANT.fullmatch(text):
        try:
            return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
        except (ValueError, OverflowError):
            pass
    raise RefusedError(
        f"{parameter}: '{text}' is not an instant{_macro(text)}; give YYYY-MM-DDTHH:MM:SSZ, as 2026-03-02T06:00:00Z"
    )


def parse_zone(name: str, parameter: str = "zone") -> zoneinfo.ZoneInfo:
    """The time zone of a name.

    Args:
        name: Of the IANA data base, as America/Los_Angeles, or UTC.
        parameter: Where the name came from, for the message.

    Raises:
        RefusedError: there is no such zone; with the name as it came.
    """
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a folder of zones is an OSError
        raise RefusedError(
            f"{parameter}: '{name}' is not a time zone{_macro(name)}; give a name as UTC or America/Los_Angeles"
        ) from None


def scheduled_day(instant: datetime.datetime, zone: zoneinfo.ZoneInfo, lag_days: int) -> datetime.date:
    """D of a scheduled run: the date of its scheduled instant in a zone, minus the lag.

    Args:
        instant: For when the run was scheduled, whenever it really starts.
        zone: Whose calendar counts.
        lag_days: How many days D lies before that date.

    Raises:
        RefusedError: a negative lag, or one that the calendar has no room for.
    """
    if lag_days < 0:
        raise RefusedError(f"lag_days: {lag_days} is negative; D would lie after the scheduled time")
    try:
        return instant.astimezone(zone).date() - datetime.timedelta(days=lag_days)
    except OverflowError:
        raise RefusedError(f"lag_days: {lag_days} days before {instant.isoformat()} the calendar has none") from None


def _macro(text: str) -> str:
    return " (a scheduler's macro that was not expanded)" if text.startswith(("[[", "{{")) else ""


def days_before(date: datetime.date, num_days: int, parameter: str) -> tuple[datetime.date, ...]:
    """The `num_days` days that end the day before `date`, in order.

    Raises:
        RefusedError: the calendar does not reach that far; with the parameter's name.
    """
    return _days(date, range(-num_days, 0), parameter)


def days_from(date: datetime.date, num_days: int, parameter: str) -> tuple[datetime.date, ...]:
    """`date` and the days after it, `num_days` in all.

    Raises:
        RefusedError: as `days_before`.
    """
    return _days(date, range(num_days), parameter)


def _days(date: datetime.date, offsets: range, parameter: str) -> tuple[datetime.date, ...]:
    try:
        first, last = (date + datetime.timedelta(days=offset) for offset in (offsets[0], offsets[-1]))
    except OverflowError:
        raise RefusedError(f"{parameter}: {len(offsets)} days at {date} are more than the calendar has") from None
    return tuple(map(datetime.date.fromordinal, range(first.toordinal(), last.toordinal() + 1)))
