import datetime
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from thaw.components.config import load
from thaw.components.select_window.cron import daily_cron, parse_cron
from thaw.pipelines.kubeflow.windows import Timing, check_timing, windows_table

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def shown(timing, start, *overrides):
    config = load("small", ["data.window.num_days=2", "backbone={fetch: {uri: 'gs://b'}}", *overrides])
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(windows_table(timing, config, datetime.datetime.fromisoformat(start)))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_days_go_on_over_a_clock_change():
    lines = shown(Timing(daily_cron("15:00"), ZoneInfo("America/Los_Angeles"), 1), "2026-03-07T00:00:00Z")
    assert lines[0].split("  ") != []
    assert [line.split()[2:6] for line in lines[1:4]] == [
        ["15:00:00", "Sat", "2026-03-07", "07:00"],
        ["15:00:00", "Sun", "2026-03-08", "08:00"],
        ["15:00:00", "Mon", "2026-03-09", "08:00"],
    ]
    assert [line.split()[7] for line in lines[1:]] == [f"2026-03-{day:02}" for day in range(6, 13)]


def test_the_days_go_on_over_a_leap_day_and_a_months_end():
    lines = shown(Timing(daily_cron("06:00"), ZoneInfo("UTC"), 1), "2028-02-28T12:00:00Z")
    assert lines[1:5] == [
        "Tue 2028-02-29 06:00:00  2028-02-28  2028-02-26 ... 2028-02-27  2028-02-28",
        "Wed 2028-03-01 06:00:00  2028-02-29  2028-02-27 ... 2028-02-28  2028-02-29",
        "Thu 2028-03-02 06:00:00  2028-03-01  2028-02-28 ... 2028-02-29  2028-03-01",
        "Fri 2028-03-03 06:00:00  2028-03-02  2028-02-29 ... 2028-03-01  2028-03-02",
    ]


def test_all_that_a_run_will_read_is_shown():
    lines = shown(
        Timing(parse_cron("0 0 6 * * 1"), ZoneInfo("UTC"), 3),
        "2026-03-01T00:00:00Z",
        "data.window.num_evaluation_days=2",
        "backbone={pretrain: {num_days: 3}}",
    )
    assert lines[0].split("  ")[-1] == "days of the backbone"
    assert lines[1] == (
        "Mon 2026-03-02 06:00:00  2026-02-27  2026-02-25 ... 2026-02-26  2026-02-27 ... 2026-02-28  "
        "2026-02-22 ... 2026-02-24"
    )


@pytest.mark.parametrize(("lag_days", "num_evaluation_days"), [(0, 1), (1, 2), (-1, 1)])
def test_a_lag_that_is_shorter_than_the_evaluation_is_refused(lag_days, num_evaluation_days):
    config = load("small", [f"data.window.num_evaluation_days={num_evaluation_days}"])
    with pytest.raises(ValueError, match=rf"--lag-days {lag_days}: .*give at least {num_evaluation_days}"):
        check_timing(Timing(daily_cron("06:00"), ZoneInfo("UTC"), lag_days), config, NOW)


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("0 0 */12 * * *", "UTC", "both are for D = 2026-01-01"),
        ("0 30 7 * * *", "America/Los_Angeles", "for D = 2026-03-06 and 2026-03-08: the zone's clock change"),
        ("0 30 22 * * *", "Europe/Berlin", "for D = 2026-03-27 and 2026-03-29"),
        ("0 30 7 * * 1", "America/Los_Angeles", "for D = 2026-02-28 and 2026-03-08"),
        ("0 30 7 * 11 *", "America/Los_Angeles", "for D = 2026-10-31 and 2026-10-31"),
        ("0 30 7 * 3 *", "America/Los_Angeles", "for D = 2026-03-06 and 2026-03-08"),
    ],
)
def test_a_timing_that_gives_a_day_twice_or_leaves_one_out_is_refused(cron, zone, words):
    with pytest.raises(ValueError) as caught:
        check_timing(Timing(parse_cron(cron), ZoneInfo(zone), 1), load("small"), NOW)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("cron", "zone"),
    [
        ("0 0 15 * * *", "America/Los_Angeles"),
        ("0 0 0 * * *", "UTC"),
        ("0 0 6 * * 1", "Pacific/Apia"),
        ("0 0 6 1 * *", "UTC"),
    ],
)
def test_a_timing_that_gives_each_day_once_passes(cron, zone):
    check_timing(Timing(parse_cron(cron), ZoneInfo(zone), 1), load("small"), NOW)


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kolkata", "America/Havana", "Africa/Cairo"])
def test_the_end_of_a_day_is_the_last_second_that_has_it(zone):
    timing = Timing(daily_cron("06:00"), ZoneInfo(zone), 2)
    for number in range(datetime.date(2026, 1, 1).toordinal(), datetime.date(2027, 1, 1).toordinal()):
        day = datetime.date.fromordinal(number)
        end = timing.end_of(day)
        assert timing.day(end) == day
        assert timing.day(end + datetime.timedelta(seconds=1)) == day + datetime.timedelta(days=1)
