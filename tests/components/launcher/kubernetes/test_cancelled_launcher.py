"""A launcher that is told to end, or is killed: what becomes of its job."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest
from launching_step import LaunchingStep, ready_run
from scripted_api import BOTH_RUN, Fault, JobState, PodState, ScriptedApi, condition

RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)


@pytest.fixture
def step(tmp_path: Path, api: ScriptedApi) -> LaunchingStep:
    api.script = [RUNNING]
    return ready_run(tmp_path, "cluster.deadline_s=7000", "cluster.ttl_s=3600")


def running(api: ScriptedApi) -> str:
    """The job's name, once its launcher follows it."""
    api.until(lambda: len(api.made("GET", "/pods")) > 2)
    return next(iter(api.jobs))


# https://github.com/kubeflow/pipelines/issues/4692
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_told_to_end_deletes_its_job(
    api: ScriptedApi, step: LaunchingStep, number: signal.Signals
) -> None:
    api.add({"metadata": {"name": "another"}})
    process = step.start()
    name = [running(api), *api.jobs][-1]
    uid = api.jobs[name]["metadata"]["uid"]
    process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    (deleted,) = api.made("DELETE")
    assert deleted.path.endswith(f"/pytorchjobs/{name}")
    assert deleted.body["propagationPolicy"] == "Background" and deleted.body["preconditions"]["uid"] == uid
    assert list(api.jobs) == ["another"]
    failure = json.loads((step.attempt(1) / "failure.json").read_text())
    assert f"its launcher was told to end by {number.name}" in failure["message"]
    assert "was deleted" in failure["message"]


def test_the_job_is_deleted_though_the_launchers_process_group_is_killed(api: ScriptedApi, step: LaunchingStep) -> None:
    api.faults = [Fault("DELETE", "", "hang")]
    process = step.start()
    running(api)
    os.killpg(process.pid, signal.SIGTERM)
    api.until(lambda: api.made("DELETE"))
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    api.until(lambda: not api.jobs)
    assert len(api.made("DELETE")) == 2


def test_a_launcher_does_without_the_process_that_stands_by(api: ScriptedApi, step: LaunchingStep) -> None:
    process = step.start()
    running(api)
    (stands_by,) = psutil.Process(process.pid).children()
    stands_by.kill()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    assert len(api.made("DELETE")) == 1
    assert "was deleted" in json.loads((step.attempt(1) / "failure.json").read_text())["message"]


# https://github.com/kubeflow/pipelines/issues/677
def test_a_launcher_that_is_killed_leaves_a_job_that_ends_without_it(api: ScriptedApi, step: LaunchingStep) -> None:
    process = step.start(KFP_POD_NAME="step", KFP_POD_UID="uid-1")
    name = running(api)
    process.kill()
    process.communicate()
    assert not api.made("DELETE")
    job = api.jobs[name]
    policy = job["spec"]["runPolicy"]
    assert (policy["activeDeadlineSeconds"], policy["ttlSecondsAfterFinished"]) == (7000, 3600)
    assert job["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Pod", "name": "step", "uid": "uid-1"}]
    assert json.loads((step.attempt(1) / "job.json").read_text())["lease_timeout_s"] == 600
    assert not (step.attempt(1) / "failure.json").exists()


def test_a_create_that_is_under_way_is_undone(api: ScriptedApi, step: LaunchingStep) -> None:
    api.faults = [Fault("POST", "", "hang", done=True)]
    process = step.start()
    api.until(lambda: api.made("POST"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    assert len(api.made("DELETE")) == 1 and not api.jobs
    assert (step.attempt(1) / "failure.json").exists()


def test_where_the_deletion_is_not_answered_the_attempt_stays_open(api: ScriptedApi, step: LaunchingStep) -> None:
    api.faults = [Fault("DELETE", "", status=403)]
    process = step.start()
    running(api)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "lives on until its lease runs out" in output
    assert not (step.attempt(1) / "failure.json").exists()


def test_a_job_that_had_done_its_work_when_its_launcher_is_told_to_end_is_not_done_again(
    api: ScriptedApi, step: LaunchingStep
) -> None:
    process = step.start()
    running(api)
    (step.attempt(1) / "result.json").write_text("{}")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1 and "when it had done its work" in output
    assert len(api.made("DELETE")) == 1
    assert not (step.attempt(1) / "failure.json").exists()


def test_before_its_job_is_known_a_launcher_ends_without_deleting(api: ScriptedApi, step: LaunchingStep) -> None:
    api.faults = [Fault("GET", "/pytorchjobs/", "hang")]
    process = step.start()
    api.until(lambda: api.made("GET"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    assert not api.made("DELETE")


def test_a_create_that_is_not_answered_and_may_yet_be_done_leaves_the_attempt_open(
    api: ScriptedApi, step: LaunchingStep
) -> None:
    api.faults = [Fault("POST", "", "hang")]
    process = step.start()
    api.until(lambda: api.made("POST"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1 and "may yet be created" in output
    assert not (step.attempt(1) / "failure.json").exists()


def test_a_failure_that_was_being_told_is_told_with_the_signal(api: ScriptedApi, step: LaunchingStep) -> None:
    failed = JobState(condition("Created", "Running", "Failed"), (PodState("master-0", "Failed", 7),))
    api.script = [RUNNING] * 3 + [failed]
    api.faults = [Fault("GET", "/log$", "hang", times=100)]
    process = step.start()
    api.until(lambda: any("tailLines" in each.query for each in api.requests))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    failure = json.loads((step.attempt(1) / "failure.json").read_text())
    assert "Failed as scripted; then its launcher was told to end by SIGTERM" in failure["message"]
    assert not api.jobs


def test_a_signal_beside_the_deletion_hides_not_the_cause(api: ScriptedApi, step: LaunchingStep) -> None:
    api.faults = [Fault("GET", "/pods$", status=403, message="cannot list"), Fault("DELETE", "", "hang")]
    process = step.start()
    api.until(lambda: api.made("DELETE"))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 1, output
    failure = json.loads((step.attempt(1) / "failure.json").read_text())
    assert "cannot list; then its launcher was told to end by SIGTERM" in failure["message"]
    assert not api.jobs


def test_the_job_stays_with_the_start_that_has_taken_it_up(api: ScriptedApi, step: LaunchingStep) -> None:
    first = step.start(KFP_POD_NAME="first", KFP_POD_UID="uid-1")
    running(api)
    second = step.start(KFP_POD_NAME="second", KFP_POD_UID="uid-2")
    api.until(lambda: api.made("PATCH"))
    first.send_signal(signal.SIGTERM)
    output, _ = first.communicate(timeout=100)
    second.kill()
    second.communicate()
    assert first.returncode == 1 and "is left to another start of the step" in output
    assert api.jobs and not api.made("DELETE")
    assert not (step.attempt(1) / "failure.json").exists()
