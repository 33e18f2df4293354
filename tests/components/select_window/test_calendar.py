import datetime
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from thaw.components.config import ConfigError, load
from thaw.components.select_window.calendar import (
    days_before,
    days_from,
    parse_date,
    parse_instant,
    parse_zone,
    scheduled_day,
)

day = datetime.date.fromisoformat


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata", "Pacific/Apia"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("date", "num_days", "first", "last"),
    [
        pytest.param("2026-03-10", 4, "2026-03-06", "2026-03-09", id="clocks go forward in New York"),
        pytest.param("2026-11-04", 4, "2026-10-31", "2026-11-03", id="clocks go back in New York"),
        pytest.param("2028-03-05", 10, "2028-02-24", "2028-03-04", id="leap day"),
        pytest.param("2027-01-03", 10, "2026-12-24", "2027-01-02", id="turn of the year"),
    ],
)
def test_the_window_is_every_calendar_day_once_in_every_zone(
    zone: str, date: str, num_days: int, first: str, last: str
) -> None:
    days = days_before(day(date), num_days, "n")
    assert (days[0], days[-1], len(days)) == (day(first), day(last), num_days)
    assert [later.toordinal() - earlier.toordinal() for earlier, later in itertools.pairwise(days)] == [1] * (
        num_days - 1
    )


def test_the_evaluation_days_begin_with_the_date() -> None:
    assert days_from(day("2026-02-28"), 2, "n") == (day("2026-02-28"), day("2026-03-01"))


@pytest.mark.parametrize("days", [days_before, days_from])
def test_more_days_than_the_calendar_has_are_refused_by_name(days) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"data\.window\.num_days: 10000000 days"):
        days(day("2026-03-02"), 10_000_000, "data.window.num_days")


@pytest.mark.parametrize("num_days", ["0", "-1", "1.5", "'4'", "null"])
def test_a_window_that_is_no_positive_whole_number_of_days_is_refused_with_its_name_and_value(num_days: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.window\.num_days: .*" + num_days.replace("null", "None").strip("'")):
        load("small", [f"data.window.num_days={num_days}"])


def test_a_date_is_read_as_written() -> None:
    assert parse_date("2026-03-02") == datetime.date(2026, 3, 2)


@pytest.mark.parametrize(
    "text",
    [
        "[[ScheduledTime.2006-01-02]]",
        "[[CurrentTime]]",
        "{{$.pipeline_job_schedule_time_utc}}",
        "",
        " ",
        "2026-02-30",
        "2026-3-1",
        "03/01/2026",
        "20260301",
        "2026-W09-7",
        "2026-03-01T00:30:00Z",
        " 2026-03-01",
        "2026-03-01\n",
        "٢٠٢٦-٠٣-٠١",
    ],
)
def test_a_text_that_is_no_date_is_refused_verbatim_with_parameter_and_format(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_date(text, "date")
    message = str(caught.value)
    assert message.startswith("date: ")
    assert f"'{text}'" in message
    assert "YYYY-MM-DD" in message


@pytest.mark.parametrize(
    ("instant", "zone", "lag_days", "date"),
    [
        ("2026-03-02T00:30:00Z", "UTC", 0, "2026-03-02"),
        ("2026-03-02T00:30:00Z", "America/Los_Angeles", 0, "2026-03-01"),
        ("2026-03-08T09:59:59Z", "America/Los_Angeles", 0, "2026-03-08"),
        ("2026-03-09T06:59:59Z", "America/Los_Angeles", 0, "2026-03-08"),  # 23:59:59, an hour later than the day before
        ("2026-03-09T07:00:00Z", "America/Los_Angeles", 0, "2026-03-09"),
        ("2026-11-02T07:59:59Z", "America/Los_Angeles", 0, "2026-11-01"),
        ("2028-03-01T06:00:00Z", "UTC", 1, "2028-02-29"),
        ("2027-01-01T06:00:00Z", "UTC", 2, "2026-12-30"),
        ("2026-03-02T05:30:00+05:30", "UTC", 0, "2026-03-02"),
        ("2026-03-01T20:00:00Z", "Asia/Kolkata", 0, "2026-03-02"),
    ],
)
def test_the_date_of_a_scheduled_instant_is_that_of_its_zone_minus_the_lag(
    instant: str, zone: str, lag_days: int, date: str
) -> None:
    assert scheduled_day(parse_instant(instant), parse_zone(zone), lag_days) == day(date)


def test_a_lag_that_the_calendar_has_no_room_for_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lag_days: 10000000 days"):
        scheduled_day(parse_instant("2026-03-02T00:30:00Z"), parse_zone("UTC"), 10_000_000)


def test_zones_are_known_on_a_machine_that_has_none_of_its_own() -> None:
    code = (
        "import zoneinfo; zoneinfo.reset_tzpath(to=()); "
        "from thaw.components.select_window.calendar import parse_zone; parse_zone('America/Los_Angeles')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
