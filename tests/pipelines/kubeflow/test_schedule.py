import pytest
from kfp_server import Fault

from thaw.components import storage
from thaw.pipelines.kubeflow import commands

DAILY = ["--daily", "06:00", "--lag-days", "1"]


BACKBONE = [
    "--kind",
    "backbone",
    "--set",
    "backbone={pretrain: {num_days: 2}, publish_prefix_uri: 'gs://bucket/backbones'}",
]


@pytest.fixture
def schedule(thaw, config_options, gcs_uri):
    def run(*arguments, name="daily", typed=None):
        return thaw("schedule", name, *config_options, "--root", gcs_uri, *arguments, typed=typed)

    return run


def test_a_schedule_is_a_recurring_run_that_takes_its_date_from_its_scheduled_time(schedule, kfp_server, gcs_uri):
    result = schedule(*DAILY, "--zone", "America/Los_Angeles", "--service-account", "trainer")
    assert result.exit_code == 0, result.output
    (made,) = kfp_server.recurring
    assert (made["display_name"], made["mode"], made["service_account"]) == ("daily", "ENABLE", "trainer")
    assert made["trigger"]["cron_schedule"]["cron"] == "0 0 6 * * *"
    assert (made["no_catchup"], made["max_concurrency"]) == (True, "1")
    parameters = made["runtime_config"]["parameters"]
    assert {key: value for key, value in parameters.items() if key != "config"} == {
        "root": gcs_uri,
        "schedule": "daily",
        "cron": "0 0 6 * * *",
        "zone": "America/Los_Angeles",
        "lag_days": 1,
        "backend": "kubernetes",
    }
    inputs = made["pipeline_spec"]["root"]["dag"]["tasks"]["select-window"]["inputs"]["parameters"]
    assert inputs["scheduled_time"]["runtimeValue"]["constant"] == "{{$.pipeline_job_schedule_time_utc}}"


def test_catching_up_and_more_runs_at_once_are_choices(schedule, kfp_server):
    assert schedule(*DAILY, "--catch-up", "--max-concurrency", "3").exit_code == 0
    assert (kfp_server.recurring[0]["no_catchup"], kfp_server.recurring[0]["max_concurrency"]) == (False, "3")


def test_the_next_seven_windows_are_shown_before_the_schedule_is_made(schedule, kfp_server):
    kfp_server.faults.append(Fault("POST", "/recurringruns", status=403))
    result = schedule(*DAILY)
    assert result.exit_code == 1
    header, *rows = result.output.splitlines()[:8]
    assert header.split("  ")[0] == "scheduled for (UTC)"
    assert len({row.split()[3] for row in rows}) == 7
    assert all(row.split()[2] == "06:00:00" for row in rows)


@pytest.mark.parametrize(
    ("typed", "options", "is_made"), [("n\n", [], False), ("y\n", [], True), ("", ["--yes"], True)]
)
def test_whoever_sits_at_a_terminal_is_asked_first(schedule, kfp_server, monkeypatch, typed, options, is_made):
    monkeypatch.setattr(commands, "_someone_is_there", lambda: True)
    result = schedule(*DAILY, *options, typed=typed)
    assert ("Put schedule daily into force at http" in result.output) == (not options)
    assert (result.exit_code == 0) == is_made == bool(kfp_server.recurring)


def test_asking_twice_is_asking_once(schedule, kfp_server):
    assert schedule(*DAILY).exit_code == 0
    writes = len(kfp_server.writes())
    again = schedule(*DAILY)
    assert again.exit_code == 0 and "is in force" in again.output
    assert len(kfp_server.writes()) == writes


def test_a_paused_schedule_that_is_asked_for_again_is_enabled(schedule, kfp_server):
    assert schedule(*DAILY).exit_code == 0
    kfp_server.recurring[0]["mode"] = "DISABLE"
    assert schedule(*DAILY).exit_code == 0
    assert [made["mode"] for made in kfp_server.recurring] == ["ENABLE"]


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_create_whose_answer_was_lost_takes_effect_once(schedule, kfp_server, after_effect):
    kfp_server.faults.append(Fault("POST", "/recurringruns$", after_effect=after_effect))
    assert schedule(*DAILY).exit_code == 0
    assert len(kfp_server.recurring) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--daily", "6am", "--lag-days", "1"], "--daily: '6am'"),
        (
            ["--cron", "0 6 * * *", "--lag-days", "1"],
            "--cron '0 6 * * *' has 5 fields; Kubeflow's has six, seconds first, as '0 0 6 * * *'",
        ),
        (["--lag-days", "1"], "give --daily HH:MM or --cron"),
        ([*DAILY, "--cron", "0 0 6 * * *"], "one of the two"),
        (["--daily", "06:00", "--lag-days", "0"], "--lag-days 0: "),
        ([*DAILY, "--set", "data.window.num_evaluation_days=2"], "give at least 2"),
        ([*DAILY, "--zone", "Mars/Olympus"], "--zone: 'Mars/Olympus' is not a time zone"),
        (["--daily", "07:30", "--lag-days", "1", "--zone", "America/Los_Angeles"], "carries the tick over midnight"),
        ([*DAILY, "--max-concurrency", "0"], "--max-concurrency 0: Kubeflow takes 1 to 10"),
        ([*DAILY, "--retries", "-1"], "--retries -1: give 0 to 100"),
        ([*DAILY, "--set", "backbone={fetch: {uri: /b}}"], "backbone.fetch.uri: /b is on this machine"),
        ([*DAILY, "--set", "data.uri=/data"], "data.uri: /data is on this machine"),
        ([*DAILY, "--set", "data.uri=null", "--set", "data.generate={kind: demo, size: S}"], "data.uri is not set"),
        ([*DAILY, "--kind", "backbone"], "backbone.publish_prefix_uri is not set"),
        ([*DAILY, *BACKBONE, "--set", "backbone.publish_prefix_uri=/here"], "/here is on this machine"),
        ([*DAILY, "--set", "data.window.num_days=1000000"], "data.window.num_days: 1000000 days"),
    ],
)
def test_what_cannot_run_is_refused_before_any_request(schedule, kfp_server, gcs_uri, arguments, words):
    result = schedule(*arguments)
    assert result.exit_code == 1
    assert words in result.output
    assert kfp_server.requests == [] and storage.list_dirs(gcs_uri) == []


@pytest.mark.parametrize("name", ["a/b", "[[Schedule]]", "", "s" * 101])
def test_a_name_that_can_begin_no_runs_id_is_refused_before_any_request(schedule, kfp_server, name):
    result = schedule(*DAILY, name=name)
    assert result.exit_code == 1 and "schedule '" in result.output
    assert kfp_server.requests == []


@pytest.mark.parametrize(
    ("tag", "stated", "words"),
    [
        ("2.16.1", None, "is Kubeflow Pipelines 2.16: before 2.17 a run is not told"),
        ("2.16.1", "2.17", "is Kubeflow Pipelines 2.16"),
        ("unknown", None, "does not say its version"),
        (None, None, "give it as --server-version"),
        ("unknown", "2.5.0", "is Kubeflow Pipelines 2.5"),
        ("unknown", "new", "--server-version: 'new' is no version"),
        ("unknown", "2.17.1", None),
        ("v2.18.0-rc.1", None, None),
        ("3.0.0", None, None),
    ],
)
def test_a_server_that_does_not_tell_a_run_its_scheduled_time_gets_no_schedule(
    schedule, kfp_server, tag, stated, words
):
    kfp_server.health = {"multi_user": False} | ({"tag_name": tag} if tag else {})
    result = schedule(*DAILY, *(["--server-version", stated] if stated else []))
    if words is None:
        assert result.exit_code == 0, result.output
    else:
        assert result.exit_code == 1 and words in result.output
        assert kfp_server.writes() == []


def test_a_recurring_run_that_others_made_is_left_alone(schedule, kfp_server):
    assert schedule(*DAILY).exit_code == 0
    kfp_server.recurring[0]["description"] = "made by hand"
    writes = len(kfp_server.writes())
    result = schedule(*DAILY)
    assert result.exit_code == 1 and "that `thaw schedule` did not make" in result.output
    assert len(kfp_server.writes()) == writes


def test_schedules_are_listed_with_their_next_windows(schedule, thaw, kfp_server, gcs_uri):
    assert "no schedules" in thaw("schedules").output
    assert schedule(*DAILY).exit_code == 0
    assert schedule("--cron", "0 0 6 * * 1", "--lag-days", "2", *BACKBONE, name="weekly").exit_code == 0
    kfp_server.recurring[1]["mode"] = "DISABLE"
    lines = thaw("schedules").output.splitlines()
    assert lines[0] == f"daily: in force, cron '0 0 6 * * *', zone UTC, lag 1 days, {gcs_uri}"
    assert [line.split()[2] for line in lines[2:5]] == ["06:00:00"] * 3
    assert lines[5:] == [f"weekly: disabled, cron '0 0 6 * * 1', zone UTC, lag 2 days, {gcs_uri}"]


def test_a_backbone_is_scheduled_by_its_own_pipeline(schedule, kfp_server):
    result = schedule("--cron", "0 0 6 * * 1", "--lag-days", "1", *BACKBONE)
    assert result.exit_code == 0, result.output
    tasks = kfp_server.recurring[0]["pipeline_spec"]["root"]["dag"]["tasks"]
    assert set(tasks) == {"select-window", "prepare-backbone", "publish-backbone"}


def test_an_unscheduled_schedule_is_gone_and_its_runs_go_on(schedule, thaw, kfp_server):
    assert schedule(*DAILY).exit_code == 0
    kfp_server.now = kfp_server.now.replace(day=9)
    kfp_server.recurring[0]["trigger"]["cron_schedule"]["start_time"] = "2026-03-02T12:00:00Z"
    (run,) = kfp_server.trigger(end_as="RUNNING")
    assert thaw("unschedule", "daily").exit_code == 0
    assert kfp_server.recurring == [] and run["state"] == "RUNNING"
    gone = thaw("unschedule", "daily")
    assert gone.exit_code == 1 and "no schedule daily" in gone.output


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda made: made["runtime_config"]["parameters"].pop("zone"), "no zone"),
        (lambda made: made["runtime_config"]["parameters"].pop("root"), "no root"),
        (lambda made: made["runtime_config"]["parameters"].update(zone="Mars"), "zone: 'Mars' is not a time zone"),
        (lambda made: made["runtime_config"]["parameters"].update(lag_days="x"), "'x'"),
        (lambda made: made.pop("runtime_config"), "no config, root, zone, lag_days"),
        (lambda made: made.update(trigger={"periodic_schedule": {"interval_second": "5"}}), "it triggers by no cron"),
        (lambda made: made["trigger"]["cron_schedule"].update(cron="0 6 * * *"), "has 5 fields"),
    ],
)
def test_a_damaged_schedule_is_listed_as_such_and_not_replaced(schedule, thaw, kfp_server, damage, words):
    assert schedule(*DAILY).exit_code == schedule(*DAILY, name="other").exit_code == 0
    damage(kfp_server.recurring[0])
    listed = thaw("schedules")
    assert listed.exit_code == 0, listed.output
    assert listed.output.startswith("schedule daily is damaged") and words in listed.output.splitlines()[0]
    assert "other: in force" in listed.output
    writes = len(kfp_server.writes())
    refused = schedule("--daily", "18:00", "--lag-days", "1")
    assert refused.exit_code == 1 and "schedule daily is damaged" in refused.output and words in refused.output
    assert len(kfp_server.writes()) == writes
    assert thaw("unschedule", "daily").exit_code == schedule(*DAILY).exit_code == 0
