import datetime
import itertools

import pytest

from thaw.components.select_window.cron import daily_cron, parse_cron

UTC = datetime.UTC


def at(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


def ticks(cron, start, num=3):
    return [f"{tick:%Y-%m-%d %H:%M:%S}" for tick in itertools.islice(cron.after(at(start)), num)]


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("0 0 6 * * *", "2028-02-28 06:00:00", ["2028-02-29 06:00:00", "2028-03-01 06:00:00", "2028-03-02 06:00:00"]),
        ("30 15 6 * * 1", "2026-03-02 06:15:30", ["2026-03-09 06:15:30", "2026-03-16 06:15:30", "2026-03-23 06:15:30"]),
        ("0 0 6 ? * MON-WED", "2026-03-01 00:00:00", [f"2026-03-0{day} 06:00:00" for day in (2, 3, 4)]),
        ("0 0 6 31 * *", "2026-01-31 06:00:00", ["2026-03-31 06:00:00", "2026-05-31 06:00:00", "2026-07-31 06:00:00"]),
        (
            "0 0 6 29 feb *",
            "2026-01-01 00:00:00",
            ["2028-02-29 06:00:00", "2032-02-29 06:00:00"],
        ),
        (
            "0 */20 5-6 * * *",
            "2026-01-01 05:39:59",
            ["2026-01-01 05:40:00", "2026-01-01 06:00:00", "2026-01-01 06:20:00"],
        ),
        (
            "0 0 22/1 * * *",
            "2026-01-01 22:00:00",
            ["2026-01-01 23:00:00", "2026-01-02 22:00:00", "2026-01-02 23:00:00"],
        ),
        # Of two restricted fields, either makes the day.
        ("0 0 6 1 * 0", "2026-03-01 07:00:00", ["2026-03-08 06:00:00", "2026-03-15 06:00:00", "2026-03-22 06:00:00"]),
        ("0 0 6 1 * 3", "2026-03-25 07:00:00", ["2026-04-01 06:00:00", "2026-04-08 06:00:00", "2026-04-15 06:00:00"]),
    ],
)
def test_the_ticks_are_those_of_kubeflows_own_reader(text, start, expected):
    cron = parse_cron(text)
    assert ticks(cron, start, len(expected)) == expected
    assert cron.latest(at(expected[0]) + datetime.timedelta(milliseconds=1)) == at(expected[0])


def test_a_time_of_day_is_a_daily_cron_in_utc():
    assert daily_cron("06:05").text == "0 5 6 * * *"


@pytest.mark.parametrize("text", ["6:00", "24:00", "06:60", "0600", "06:00:00", "[[Hour]]", ""])
def test_what_is_no_time_of_day_is_refused(text):
    with pytest.raises(ValueError, match=r"--daily: .*HH:MM") as caught:
        daily_cron(text)
    assert f"'{text}'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 6 * * *", "has 5 fields; Kubeflow's has six, seconds first, as '0 0 6 * * *'"),
        ("0 0 6 * * * 2026", "has 7 fields"),
        ("not a cron", "has 3 fields"),
        ("", "has 0 fields"),
        ("@daily", "has 1 fields"),
        ("60 0 6 * * *", "second '60' is not in 0-59"),
        ("0 0 24 * * *", "hour '24' is not in 0-23"),
        ("0 0 6 0 * *", "day of month '0' is not in 1-31"),
        ("0 0 6 * 13 *", "month '13' is not in 1-12"),
        ("0 0 6 * * 7", "day of week '7' is not in 0-6"),
        ("0 0 6 * * MON-", "day of week 'MON-'"),
        ("0 0 6-5 * * *", "hour '6-5'"),
        ("0 */0 6 * * *", "minute '*/0'"),
        ("0 0 6,, * * *", "hour ''"),
        ("0 0 -6 * * *", "hour '-6'"),
        ("0 0 6 L * *", "day of month 'L'"),
        ("0 0 6 30 2 *", "no such day comes"),
    ],
)
def test_a_cron_that_kubeflow_would_take_otherwise_is_refused_with_the_right_form(text, words):
    with pytest.raises(ValueError) as caught:
        parse_cron(text)
    assert words in str(caught.value)
    assert f"'{text}'" in str(caught.value)
