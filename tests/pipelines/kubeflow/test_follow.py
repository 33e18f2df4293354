import pytest
from kfp_server import Fault

from thaw.pipelines.kubeflow import commands


def ends(*states):
    """Lets a run go from state to state each time that it is asked for."""
    left = list(states)

    def next_state(run):
        run["state"] = left.pop(0) if left else run["state"]

    return next_state


def test_a_followed_run_that_succeeds_ends_with_status_0_and_shows_each_state_once(submit, kfp_server):
    kfp_server.on_get_run = ends("PENDING", "RUNNING", "RUNNING", "SUCCEEDED")
    result = submit("--wait", "--poll-s", "0.001")
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if line.startswith("run: ")] == [
        "run: PENDING",
        "run: RUNNING",
        "run: SUCCEEDED",
    ]


@pytest.mark.parametrize("state", ["FAILED", "CANCELED", "SKIPPED"])
def test_a_followed_run_that_ends_otherwise_ends_with_status_1_and_says_what_to_do(submit, kfp_server, state):
    kfp_server.on_get_run = ends("RUNNING", state)
    result = submit("--wait", "--poll-s", "0.001", "--run-id", "r1")
    assert result.exit_code == 1
    assert f"run r1 ended as {state}" in result.output and "thaw why r1" in result.output


def test_the_states_of_the_tasks_are_shown_as_they_change(submit, kfp_server):
    def state(run):
        done = run.setdefault("run_details", {"task_details": []})["task_details"]
        done.append(
            {
                "display_name": f"stage-{len(done)}",
                "state": "SUCCEEDED",
                "start_time": f"2026-03-0{len(done) + 1}T00:00:00Z",
            }
        )
        run["state"] = "SUCCEEDED" if len(done) == 2 else "RUNNING"

    kfp_server.on_get_run = state
    lines = submit("--wait", "--poll-s", "0.001").output.splitlines()[3:]
    assert lines == ["stage-0: SUCCEEDED", "run: RUNNING", "stage-1: SUCCEEDED", "run: SUCCEEDED"]


def test_an_outage_while_a_run_is_followed_is_ridden_out(submit, kfp_server):
    kfp_server.on_get_run = ends("RUNNING", "SUCCEEDED")
    kfp_server.faults.append(Fault("GET", "/runs/.+", status=None, times=4))
    assert submit("--wait", "--poll-s", "0.001").exit_code == 0


@pytest.mark.parametrize("page", ["<html>Log in</html>", "{}"])
def test_a_page_in_place_of_a_runs_state_ends_the_following(submit, kfp_server, page):
    kfp_server.faults.append(Fault("GET", "/runs/.+", status=200, body=page, times=99))
    result = submit("--wait", "--poll-s", "0.001")
    assert result.exit_code == 1 and "did not tell of run" in result.output


def test_an_interrupt_ends_the_following_and_not_the_run(submit, kfp_server, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "follow", interrupted)
    result = submit("--wait")
    assert result.exit_code == 130 and "what was started goes on" in result.output
    assert not any(path.endswith(":terminate") for _, path, _ in kfp_server.requests)


def test_waiting_for_a_run_that_is_there_follows_it(submit, kfp_server):
    assert submit().exit_code == 0
    kfp_server.on_get_run = ends("FAILED")
    assert submit("--wait", "--poll-s", "0.001").exit_code == 1
    assert len(kfp_server.runs) == 1
