import pytest
from kfp_server import Fault

from thaw.components import runs, storage

SPAN = ["--from", "2026-03-06", "--to", "2026-03-09"]


@pytest.fixture
def backfill(thaw, config_options, gcs_uri):
    def run(*arguments):
        options = ["--root", gcs_uri, "--schedule", "daily", "--poll-s", "0.001"]
        return thaw("backfill", *config_options, *options, *(arguments or SPAN))

    return run


@pytest.fixture
def ended(kfp_server):
    """Lets each run succeed as soon as it is looked at; keeps how many were active at once at most."""
    most = [0]

    def succeed(run):
        active = [other for other in kfp_server.runs if other["state"] == "PENDING"]
        most[0] = max(most[0], len(active))
        run["state"] = "SUCCEEDED"

    kfp_server.on_get_run = succeed
    return most


def days(kfp_server):
    return [run["runtime_config"]["parameters"]["date"] for run in kfp_server.runs]


def test_every_day_gets_a_run_of_its_own_under_the_name_that_claims_it(backfill, kfp_server, gcs_uri, ended):
    result = backfill()
    assert result.exit_code == 0, result.output
    assert days(kfp_server) == [f"2026-03-0{day}" for day in (6, 7, 8, 9)]
    assert [run["display_name"] for run in kfp_server.runs] == [f"daily-2026-03-0{day}" for day in (6, 7, 8, 9)]
    assert storage.list_dirs(f"{gcs_uri}/runs") == [f"daily-2026-03-0{day}" for day in (6, 7, 8, 9)]
    assert ended == [1]


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (["2026-03-07", "2026-03-09"], ["2026-03-07", "2026-03-08", "2026-03-09"]),
        (["2028-02-28", "2028-03-01"], ["2028-02-28", "2028-02-29", "2028-03-01"]),
        (["2026-12-31", "2027-01-01"], ["2026-12-31", "2027-01-01"]),
        (["2026-03-08", "2026-03-08"], ["2026-03-08"]),
    ],
)
def test_the_days_are_those_of_the_calendar(backfill, kfp_server, ended, span, expected):
    assert backfill("--from", span[0], "--to", span[1]).exit_code == 0
    assert days(kfp_server) == expected


@pytest.mark.parametrize(("state", "num_started"), [("RUNNING", 0), ("SUCCEEDED", 0), ("FAILED", 1)])
def test_a_day_that_its_schedule_claims_while_the_backfill_is_at_work_is_left_to_it(
    backfill, kfp_server, gcs_uri, config, ended, state, num_started
):
    scheduled = {"run_id": "7", "display_name": "daily-1", "state": state, "created_at": "2026-03-10T06:00:00Z"}

    def claim(method, path):
        if method == "POST" and path.startswith("/runs") and scheduled not in kfp_server.runs:
            kfp_server.runs.append(scheduled)
            extra = {"date": "2026-03-09", "backend": "kubernetes", "kind": "whole", "kfp_run": "7"}
            runs.open_run(f"{gcs_uri}/runs/daily-2026-03-09", config, extra)

    kfp_server.before = claim
    kfp_server.on_get_run = lambda run: run.update(state="SUCCEEDED") if run is not scheduled else None
    result = backfill()
    assert result.exit_code == 0 or state == "FAILED", result.output
    assert [run["display_name"] for run in kfp_server.runs].count("daily-2026-03-09") == num_started


def test_no_more_runs_are_active_than_allowed(backfill, kfp_server, ended):
    assert backfill(*SPAN, "--max-concurrent", "2").exit_code == 0
    assert len(kfp_server.runs) == 4 and ended == [2]


def test_asking_twice_is_asking_once(backfill, kfp_server, ended):
    assert backfill().exit_code == 0
    kfp_server.runs[-1]["state"] = "RUNNING"
    writes = len(kfp_server.writes())
    again = backfill()
    assert again.exit_code == 0
    assert [line.split(": ")[1] for line in again.output.splitlines()] == ["done, left alone"] * 3 + [
        "active, left alone"
    ]
    assert len(kfp_server.writes()) == writes


def test_a_day_that_a_schedule_is_running_is_left_alone(backfill, kfp_server, gcs_uri, config, ended):
    kfp_server.runs.append(
        {"run_id": "k1", "display_name": "daily-1", "state": "RUNNING", "created_at": "2026-03-07T00:00:00Z"}
    )
    kfp_server.on_get_run = None
    runs.create_run(gcs_uri, "daily-2026-03-07", config, {"date": "2026-03-07", "kfp_run": "k1"})
    shown = backfill("--from", "2026-03-07", "--to", "2026-03-07")
    assert shown.output == "2026-03-07: active, left alone\n"


def test_a_committed_day_is_left_alone_though_kubeflow_has_forgotten_it(backfill, kfp_server, gcs_uri, config, ended):
    run_uri = runs.create_run(gcs_uri, "daily-2026-03-07", config, {"date": "2026-03-07", "kfp_run": "forgotten"})
    for stage in runs.config_stages(config):
        with runs.stage(config, run_uri, stage) as current:
            current.commit()
    assert backfill("--from", "2026-03-07", "--to", "2026-03-07").output == "2026-03-07: done, left alone\n"
    assert kfp_server.runs == []


def test_a_failed_day_is_started_again_in_its_folder(backfill, kfp_server, gcs_uri, config, ended):
    kfp_server.on_get_run = lambda run: run.update(state="FAILED")
    failed = backfill("--from", "2026-03-07", "--to", "2026-03-08")
    assert failed.exit_code == 1 and "run daily-2026-03-07 ended as FAILED" in failed.output
    kfp_server.runs[1]["state"] = "SUCCEEDED"
    assert backfill("--from", "2026-03-07", "--to", "2026-03-08").exit_code == 0
    assert days(kfp_server) == ["2026-03-07", "2026-03-08", "2026-03-07"]
    uris = [run["runtime_config"]["parameters"]["run_uri"] for run in kfp_server.runs]
    assert uris[0] == uris[2] == f"{gcs_uri}/runs/daily-2026-03-07"


def test_a_day_that_was_begun_as_another_run_is_reported_and_the_others_go_on(backfill, kfp_server, ended):
    kfp_server.on_get_run = lambda run: run.update(state="FAILED")
    assert backfill("--from", "2026-03-07", "--to", "2026-03-07").exit_code == 0
    kfp_server.runs[0]["state"] = "FAILED"
    kfp_server.on_get_run = lambda run: run.update(state="SUCCEEDED")
    shown = backfill(*SPAN, "--dry-run", "--set", "seed=7")
    assert shown.exit_code == 1
    assert [line.split()[2] for line in shown.stdout.splitlines()[1:]] == ["absent", "refused", "absent", "absent"]
    assert "2026-03-07: Kubeflow has a run daily-2026-03-07" in shown.stderr and "another config" in shown.stderr
    refused = backfill(*SPAN, "--set", "seed=7")
    assert refused.exit_code == 1 and "with another config" in refused.output and "--run-id" not in refused.output
    assert days(kfp_server) == ["2026-03-07", "2026-03-06", "2026-03-08", "2026-03-09"]


@pytest.mark.parametrize("state", ["SUCCEEDED", "RUNNING", "FAILED"])
def test_a_run_of_that_name_below_another_root_is_not_the_days(
    backfill, thaw, config_options, gcs_uri, kfp_server, state
):
    assert backfill("--from", "2026-03-07", "--to", "2026-03-07").exit_code == 0
    kfp_server.runs[0]["state"] = state
    writes = len(kfp_server.writes())
    elsewhere = ["--root", f"{gcs_uri}/elsewhere", "--schedule", "daily"]
    result = thaw("backfill", *config_options, *elsewhere, "--from", "2026-03-07", "--to", "2026-03-07")
    assert result.exit_code == 1 and "with another run_uri" in result.output
    assert len(kfp_server.writes()) == writes


def test_a_day_of_another_kind_is_reported(backfill, kfp_server):
    with_both = ["--set", "backbone={pretrain: {num_days: 2}, publish_prefix_uri: 'gs://bucket/backbones'}"]
    day = ["--from", "2026-03-07", "--to", "2026-03-07", *with_both]
    assert backfill(*day, "--kind", "backbone").exit_code == 0
    kfp_server.runs[0]["state"] = "SUCCEEDED"
    result = backfill(*day)
    assert result.exit_code == 1 and "daily-2026-03-07 was begun as backbone" in result.output


def test_a_year_is_looked_at_in_as_many_requests_as_a_day(backfill, kfp_server):
    assert backfill("--from", "2025-03-07", "--to", "2026-03-07", "--dry-run").exit_code == 0
    num_requests = len(kfp_server.requests)
    assert backfill("--from", "2026-03-07", "--to", "2026-03-07", "--dry-run").exit_code == 0
    assert len(kfp_server.requests) == 2 * num_requests


def test_a_dry_run_lists_the_days_and_starts_none(backfill, kfp_server, gcs_uri, ended):
    assert backfill("--from", "2026-03-06", "--to", "2026-03-06").exit_code == 0
    kfp_server.runs[0]["state"] = "SUCCEEDED"
    writes = len(kfp_server.writes())
    shown = backfill(*SPAN, "--dry-run")
    assert [line.split() for line in shown.output.splitlines()[1:]] == [
        ["2026-03-06", "daily-2026-03-06", "done"],
        *([f"2026-03-0{day}", f"daily-2026-03-0{day}", "absent"] for day in (7, 8, 9)),
    ]
    assert len(kfp_server.writes()) == writes


def test_a_create_whose_answer_was_lost_takes_effect_once(backfill, kfp_server, ended):
    kfp_server.faults.append(Fault("POST", "/runs", after_effect=True))
    assert backfill().exit_code == 0
    assert days(kfp_server) == [f"2026-03-0{day}" for day in (6, 7, 8, 9)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "2026-02-30", "--to", "2026-03-01"], "--from: '2026-02-30'"),
        (["--from", "2026-03-01", "--to", "[[CurrentTime]]"], "--to: '[[CurrentTime]]'"),
        (["--from", "2026-03-02", "--to", "2026-03-01"], "the last day comes before the first"),
        (["--from", "2029-12-30", "--to", "2030-01-01"], "--to 2030-01-01: D and the days after it are evaluated"),
        ([*SPAN, "--set", "backbone={fetch: {uri: /b}}"], "backbone.fetch.uri: /b is on this machine"),
        ([*SPAN, "--set", "data.uri=/data"], "data.uri: /data is on this machine"),
        ([*SPAN, "--schedule", "a b"], "run id 'a b-2026-03-06'"),
    ],
)
def test_what_cannot_run_is_refused_before_any_request(backfill, kfp_server, arguments, words):
    result = backfill(*arguments)
    assert result.exit_code == 1 and words in result.output
    assert kfp_server.requests == []
