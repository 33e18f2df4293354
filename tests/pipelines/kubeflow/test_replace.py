"""A schedule through weeks of hours: each day once, whatever it is replaced by and wherever that is interrupted."""

import dataclasses
import datetime
import itertools
import threading
from zoneinfo import ZoneInfo

import pytest
from kfp_server import Fault

from thaw.components import storage
from thaw.components.config import load
from thaw.components.select_window.cron import daily_cron, parse_cron
from thaw.components.select_window.step import run_scheduled
from thaw.pipelines.kubeflow.client import Server, ServerError
from thaw.pipelines.kubeflow.replace import first_after, put
from thaw.pipelines.kubeflow.schedule import schedule
from thaw.pipelines.kubeflow.submit import Placement
from thaw.pipelines.kubeflow.windows import Timing

HOUR = datetime.timedelta(hours=1)
UTC = ZoneInfo("UTC")


def at(text):
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)


@pytest.fixture
def wanted(config, gcs_uri):
    """Makes schedules of one name."""
    made = schedule("daily", Timing(daily_cron("06:00"), UTC, 1), config, gcs_uri, Placement(), at("2026-03-01"))

    def of(timing, **changes):
        return dataclasses.replace(made, timing=timing, **changes)

    return of


class World:
    """The server, its controller, and the first step of every run that is triggered."""

    def __init__(self, kfp_server, root):
        self.kfp, self.root = kfp_server, root
        self.refused = []

    def let_pass(self, until):
        while self.kfp.now < until:
            self.kfp.now += HOUR
            self.trigger()

    def trigger(self):
        for run in self.kfp.trigger():
            parameters = dict(run["runtime_config"]["parameters"])
            try:
                run_scheduled(window=None, kfp_run=run["run_id"], scheduled_time=run["scheduled_at"], **parameters)
            except ValueError as error:  # There is no log; but by then the day is claimed.
                if "is claimed by" in str(error):
                    self.refused.append(str(error))

    def put(self, wanted):
        put(Server(self.kfp.host), wanted, lambda line: None, lambda: self.kfp.now)

    def put_and_die(self, wanted, num_writes, after_effect):
        """Puts a schedule into force, and is cut off at a write, before or after its effect."""
        writes = itertools.count()

        def before(method, path):
            if method != "GET" and next(writes) == num_writes:
                fault = Fault("*", "", status=None, after_effect=after_effect)
                self.kfp.faults += [fault, Fault("*", "", status=None, times=1000)]

        self.kfp.before = before
        with pytest.raises(ServerError):
            self.put(wanted)
        self.kfp.before = None
        self.kfp.faults.clear()

    def days(self):
        return [name.removeprefix("daily-") for name in sorted(storage.list_dirs(f"{self.root}/runs"))]

    def check(self, first, last):
        expected = range(
            datetime.date.fromisoformat(first).toordinal(), datetime.date.fromisoformat(last).toordinal() + 1
        )
        assert self.days() == [str(datetime.date.fromordinal(number)) for number in expected]
        assert self.refused == []
        assert [made["mode"] for made in self.kfp.recurring] == ["ENABLE"]


@pytest.fixture
def world(kfp_server, gcs_uri):
    return World(kfp_server, gcs_uri)


def test_a_schedule_runs_each_day_once_over_a_leap_day_a_months_end_and_a_clock_change(world, wanted):
    world.kfp.now = at("2028-02-26 12:00")
    world.put(wanted(Timing(daily_cron("15:00"), ZoneInfo("America/Los_Angeles"), 1)))
    world.let_pass(at("2028-03-15 12:00"))
    world.check("2028-02-25", "2028-03-13")


def test_a_weekly_schedule_runs_on_its_weekday(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(parse_cron("0 0 6 * * 1"), UTC, 1)))
    world.let_pass(at("2026-03-20"))
    assert world.days() == ["2026-03-01", "2026-03-08", "2026-03-15"]


CHANGES = {
    "to a later hour, after the tick": ("06:00", "18:00", "2026-03-05 10:00"),
    "to a later hour, before the tick": ("06:00", "18:00", "2026-03-05 04:00"),
    "to an earlier hour, before the tick": ("18:00", "06:00", "2026-03-05 10:00"),
    "to an earlier hour, after the tick": ("18:00", "06:00", "2026-03-05 20:00"),
}


@pytest.mark.parametrize(("before", "after", "when"), CHANGES.values(), ids=CHANGES)
def test_another_hour_runs_no_day_twice_and_leaves_none_out(world, wanted, before, after, when):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron(before), UTC, 1)))
    world.let_pass(at(when))
    new = wanted(Timing(daily_cron(after), UTC, 1))
    first = new.timing.cron.next(first_after(Server(world.kfp.host), new, world.kfp.now))
    num_runs = len(world.kfp.runs)
    world.put(new)
    world.let_pass(at("2026-03-09 20:00"))
    assert at(world.kfp.runs[num_runs]["scheduled_at"].rstrip("Z")) == first
    world.check("2026-03-01" if before == "06:00" else "2026-02-28", "2026-03-08")


@pytest.mark.parametrize(("lag_before", "lag_after"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Apia"])
def test_another_lag_or_zone_runs_no_day_twice_and_leaves_none_out_but_for_the_newest(
    world, wanted, lag_before, lag_after, zone
):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, lag_before)))
    world.let_pass(at("2026-03-05 07:00"))
    world.put(wanted(Timing(daily_cron("06:00"), ZoneInfo(zone), lag_after), catch_up=True))
    world.let_pass(at("2026-03-09 07:00"))
    last = at("2026-03-09 06:00").astimezone(ZoneInfo(zone)).date() - datetime.timedelta(days=lag_after)
    world.check(str(datetime.date(2026, 3, 2) - datetime.timedelta(days=lag_before)), str(last))


@pytest.mark.parametrize("pause_h", [0, 78])
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("num_writes", range(4))
def test_a_replacement_that_is_cut_off_anywhere_goes_on_when_it_is_repeated(
    world, wanted, num_writes, after_effect, pause_h
):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.let_pass(at("2026-03-05 04:00"))
    new = wanted(Timing(daily_cron("18:00"), UTC, 1))
    world.put_and_die(new, num_writes, after_effect)
    world.let_pass(world.kfp.now + pause_h * HOUR)
    world.put(new)
    world.let_pass(at("2026-03-10 20:00"))
    world.check("2026-03-01", "2026-03-09")


def test_a_day_that_an_earlier_hour_brings_forward_outlives_a_cut(world, wanted):
    world.kfp.now = at("2026-03-01 22:00")
    world.put(wanted(Timing(daily_cron("21:00"), UTC, 1)))
    world.let_pass(at("2026-03-03 20:00"))
    new = wanted(Timing(daily_cron("06:00"), UTC, 1))
    world.put_and_die(new, 2, False)
    world.let_pass(at("2026-03-05 02:00"))
    world.put(new)
    world.let_pass(at("2026-03-07 20:00"))
    world.check("2026-03-01", "2026-03-06")


@pytest.mark.parametrize(
    ("before", "after", "when"),
    [
        (("06:00", "UTC", 3), ("06:00", "UTC", 1), "2026-03-05 07:00"),
        (("20:00", "UTC", 1), ("07:00", "Asia/Tokyo", 1), "2026-03-05 18:00"),
        (("11:00", "UTC", 1), ("11:00", "Pacific/Kiritimati", 1), "2026-03-05 10:00"),
    ],
)
def test_days_that_fall_due_by_the_change_itself_are_run(world, wanted, before, after, when):
    def timing(hour, zone, lag_days):
        return Timing(daily_cron(hour), ZoneInfo(zone), lag_days)

    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(timing(*before)))
    world.let_pass(at(when))
    world.put(wanted(timing(*after)))
    world.trigger()  # The controller looks every few seconds.
    world.let_pass(at("2026-03-09 23:00"))
    days = [datetime.date.fromisoformat(day).toordinal() for day in world.days()]
    assert days == list(range(days[0], days[-1] + 1)) and world.refused == []


def test_days_that_an_old_schedule_had_missed_are_not_run_for_its_replacement(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.kfp.recurring[0]["mode"] = "DISABLE"
    world.kfp.now = at("2026-03-20 12:00")
    world.put(wanted(Timing(daily_cron("18:00"), UTC, 1)))
    world.let_pass(at("2026-03-21 20:00"))
    assert world.days() == ["2026-03-18", "2026-03-19", "2026-03-20"]  # the first by the newest tick of the new one


def test_an_old_schedule_that_ticks_in_the_middle_of_its_replacement_has_the_day(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.let_pass(at("2026-03-05 05:00"))

    def tick_before_the_old_one_is_disabled(method, path):
        if path.endswith(":disable"):
            world.kfp.before = None
            world.kfp.now += HOUR
            world.trigger()

    world.kfp.before = tick_before_the_old_one_is_disabled
    world.put(wanted(Timing(daily_cron("18:00"), UTC, 1)))
    world.let_pass(at("2026-03-09 20:00"))
    world.check("2026-03-01", "2026-03-08")


def test_a_third_schedule_takes_over_from_a_replacement_that_was_cut_off(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.let_pass(at("2026-03-05 10:00"))
    world.put_and_die(wanted(Timing(daily_cron("18:00"), UTC, 1)), 2, False)
    world.put(wanted(Timing(daily_cron("12:00"), UTC, 1)))
    world.let_pass(at("2026-03-09 20:00"))
    world.check("2026-03-01", "2026-03-08")


def test_a_schedule_that_has_not_ticked_yet_is_replaced_without_loss(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    for hour in ("06:00", "18:00", "09:00"):
        world.put(wanted(Timing(daily_cron(hour), UTC, 1)))
    world.let_pass(at("2026-03-05 20:00"))
    world.check("2026-03-01", "2026-03-04")


def test_another_configuration_replaces_the_schedule_too(world, wanted, config):
    world.kfp.now = at("2026-03-01 12:00")
    timing = Timing(daily_cron("06:00"), UTC, 1)
    world.put(wanted(timing))
    world.let_pass(at("2026-03-05 10:00"))
    changed = load("small", ["seed=7"]).model_copy(update={"data": config.data})
    world.put(wanted(timing, config=changed))
    world.let_pass(at("2026-03-09 10:00"))
    world.check("2026-03-01", "2026-03-08")
    assert '"seed":7' in world.kfp.recurring[0]["runtime_config"]["parameters"]["config"]


def test_runs_that_the_old_schedule_has_triggered_go_on(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.kfp.now = at("2026-03-02 06:00")
    (run,) = world.kfp.trigger(end_as="RUNNING")
    world.put(wanted(Timing(daily_cron("18:00"), UTC, 1)))
    assert run["state"] == "RUNNING"


def test_a_schedule_that_comes_back_at_another_hour_does_not_run_a_claimed_day_again(world, wanted, thaw):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.let_pass(at("2026-03-03 10:00"))
    assert thaw("unschedule", "daily").exit_code == 0
    world.put(wanted(Timing(daily_cron("18:00"), UTC, 1)))
    world.let_pass(at("2026-03-05 20:00"))
    world.check("2026-03-01", "2026-03-04")


def test_days_that_are_missed_while_a_schedule_is_in_force_are_left_out_unless_it_catches_up(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1)))
    world.kfp.now = at("2026-03-05 12:00")  # The controller was away.
    world.let_pass(at("2026-03-06 12:00"))
    assert world.days() == ["2026-03-04", "2026-03-05"]
    world.put(wanted(Timing(daily_cron("06:00"), UTC, 1), catch_up=True))
    world.kfp.now = at("2026-03-09 12:00")
    world.let_pass(at("2026-03-09 20:00"))
    assert world.days() == [f"2026-03-0{day}" for day in range(4, 9)]


@pytest.fixture
def at_once(world, wanted, monkeypatch):
    """Two commands, each of which has looked before either creates, and created before either looks again."""

    def run(*hours):
        looked, created = threading.Barrier(2, timeout=100), threading.Barrier(2, timeout=100)
        create, said = Server.create_recurring_run, {}

        def create_together(*arguments):
            looked.wait()
            return create(*arguments)

        def command(number, schedule):
            try:
                put(
                    Server(world.kfp.host),
                    schedule,
                    lambda line: said.update({number: line}),
                    lambda: world.kfp.now,
                    lambda _: created.wait(),
                )
            except ValueError as error:
                said[number] = str(error)

        monkeypatch.setattr(Server, "create_recurring_run", create_together)
        asked = [wanted(Timing(daily_cron(hour), UTC, 1)) for hour in hours]
        commands = [threading.Thread(target=command, args=each) for each in enumerate(asked)]
        for thread in commands:
            thread.start()
        for thread in commands:
            thread.join()
        monkeypatch.setattr(Server, "create_recurring_run", create)
        return sorted(said.values())

    return run


def test_two_commands_that_make_one_schedule_at_once_leave_one(world, at_once):
    world.kfp.now = at("2026-03-01 12:00")
    Server(world.kfp.host).experiment("thaw")
    assert at_once("06:00", "06:00") == [
        "schedule daily is being put into force by another command",
        "schedule daily is made",
    ]
    world.let_pass(at("2026-03-05 10:00"))
    world.check("2026-03-01", "2026-03-04")


def test_of_two_schedules_of_one_name_that_are_made_at_once_one_is_refused(world, at_once):
    world.kfp.now = at("2026-03-01 12:00")
    Server(world.kfp.host).experiment("thaw")
    made, refused = sorted(at_once("06:00", "07:00"), key=len)
    assert made == "schedule daily is made" and "another command has made another schedule" in refused
    world.let_pass(at("2026-03-05 10:00"))
    world.check("2026-03-01", "2026-03-04")


def test_a_schedule_that_another_command_deletes_meanwhile_is_not_said_to_be_made(world, wanted):
    world.kfp.now = at("2026-03-01 12:00")
    said = []
    with pytest.raises(ValueError, match="another command has changed it meanwhile; see `thaw schedules`"):
        put(
            Server(world.kfp.host),
            wanted(Timing(daily_cron("06:00"), UTC, 1)),
            said.append,
            lambda: world.kfp.now,
            lambda _: world.kfp.recurring.clear(),
        )
    assert said == []
