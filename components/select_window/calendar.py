"""Days by calendar arithmetic: no clock, no time zone, no 24 hours."""

import datetime
import re

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse_date(text: str, parameter: str = "date") -> datetime.date:
    """The day that a text names.

    Args:
        text: YYYY-MM-DD, exactly.
        parameter: Where the text came from, for the message.

    Raises:
        ValueError: any other text, an unexpanded macro of a scheduler among them; with the text as it came.
    """
    if _DATE.fullmatch(text):
        try:
            return datetime.date.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{parameter}: '{text}' is no day of the calendar; give YYYY-MM-DD") from None
    macro = " (a scheduler's macro that was not expanded)" if text.startswith(("[[", "{{")) else ""
    raise ValueError(f"{parameter}: '{text}' is not a date{macro}; give YYYY-MM-DD, as 2026-03-02")


def days_before(date: datetime.date, num_days: int, parameter: str) -> tuple[datetime.date, ...]:
    """The `num_days` days that end the day before `date`, in order.

    Raises:
        ValueError: the calendar does not reach that far; with the parameter's name.
    """
    return _days(date, range(-num_days, 0), parameter)


def days_from(date: datetime.date, num_days: int, parameter: str) -> tuple[datetime.date, ...]:
    """`date` and the days after it, `num_days` in all.

    Raises:
        ValueError: as `days_before`.
    """
    return _days(date, range(num_days), parameter)


def _days(date: datetime.date, offsets: range, parameter: str) -> tuple[datetime.date, ...]:
    try:
        first, last = (date + datetime.timedelta(days=offset) for offset in (offsets[0], offsets[-1]))
    except OverflowError:
        raise ValueError(f"{parameter}: {len(offsets)} days at {date} are more than the calendar has") from None
    return tuple(map(datetime.date.fromordinal, range(first.toordinal(), last.toordinal() + 1)))
