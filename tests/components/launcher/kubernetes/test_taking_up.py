"""A launcher that is started again goes on with the job that the one before it left."""

import datetime
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launching_step import LaunchingStep, ready_run, told
from scripted_api import BOTH_RUN, Fault, JobState, PodState, ScriptedApi, condition

from thaw.components import storage
from thaw.components.launcher import launch, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.kubernetes import access

RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)
FAILED = JobState(condition("Created", "Running", "Failed"), (PodState("master-0", "Failed", 7),))


@pytest.fixture
def step(tmp_path: Path, api: ScriptedApi) -> LaunchingStep:
    return ready_run(tmp_path)


@pytest.fixture
def killed(api: ScriptedApi, step: LaunchingStep) -> str:
    """Starts the step and kills it once its job is running; gives the job's name."""
    api.script = [RUNNING]
    process = step.start(KFP_POD_NAME="first", KFP_POD_UID="uid-1")
    api.until(lambda: len(api.made("GET", "/pods")) > 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    api.requests.clear()
    (name,) = api.jobs
    return name


Act = Callable[[dict[str, Any]], None]


def succeeds(act: Act) -> JobState:
    return JobState(condition("Created", "Running", "Succeeded"), act=act)


def test_a_commit_that_fails_leaves_the_jobs_work_to_another_start(
    api: ScriptedApi, step: LaunchingStep, finished: Act
) -> None:
    def finished_and_blocked(job: dict[str, Any]) -> None:
        finished(job)
        (step.attempt(1) / "model" / "complete.json").mkdir(parents=True)  # cannot be read

    api.script = [RUNNING, succeeds(finished_and_blocked)]
    output = step.start().communicate(timeout=100)[0]
    assert "complete.json" in output and not (step.attempt(1) / "failure.json").exists()
    (step.attempt(1) / "model" / "complete.json").rmdir()
    api.script = [succeeds(finished)]
    again = step.start()
    output = again.communicate(timeout=100)[0]
    assert again.returncode == 0, output
    assert len(api.made("POST")) == 1


# https://github.com/kubeflow/pipelines/issues/677
def test_a_running_job_is_taken_up_and_its_result_given(
    api: ScriptedApi, step: LaunchingStep, killed: str, finished: Act
) -> None:
    api.script = [RUNNING] * 5 + [succeeds(finished)]
    process = step.start(KFP_POD_NAME="second", KFP_POD_UID="uid-2")
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert told(output) == {"uri": str(step.attempt(1)), "metadata": {"policy": "frozen", "num_rows": 7}}
    assert not api.made("POST") and not api.made("DELETE")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "second", "uid": "uid-2"}
    assert [patch.body["metadata"]["ownerReferences"] for patch in api.made("PATCH")] == [[owner]]
    assert api.jobs[killed]["metadata"]["ownerReferences"] == [owner]
    assert not step.attempt(2).exists()


def test_a_job_that_has_succeeded_meanwhile_gives_its_result_at_once(
    api: ScriptedApi, step: LaunchingStep, killed: str, finished: Act
) -> None:
    api.script = [succeeds(finished)]
    process = step.start()
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert told(output)["uri"] == str(step.attempt(1))
    assert not api.made("POST")


def test_a_job_that_has_failed_meanwhile_is_told_and_the_next_attempt_begins(
    api: ScriptedApi, step: LaunchingStep, killed: str, finished: Act
) -> None:
    api.script = [replace(FAILED, act=lambda _: setattr(api, "script", [succeeds(finished)]))]
    process = step.start()
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert told(output)["uri"] == str(step.attempt(2))
    failure = json.loads((step.attempt(1) / "failure.json").read_text())
    assert "master-0 ended with exit code 7" in failure["message"]
    assert list(api.jobs) == [killed, f"{killed.removesuffix('1')}2"]
    assert [each.body["metadata"]["name"] for each in api.made("POST")] == [f"{killed.removesuffix('1')}2"]


def test_a_job_that_is_gone_meanwhile_is_told_and_the_next_attempt_begins(
    api: ScriptedApi, step: LaunchingStep, killed: str, finished: Act
) -> None:
    api.jobs.clear()
    api.script = [succeeds(finished)]
    process = step.start()
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert told(output)["uri"] == str(step.attempt(2))
    failure = json.loads((step.attempt(1) / "failure.json").read_text())
    assert f"PyTorchJob {killed} no longer exists" in failure["message"]


def test_a_stage_that_is_done_asks_no_server(api: ScriptedApi, step: LaunchingStep, killed: str, finished: Act) -> None:
    api.script = [succeeds(finished)]
    first = told(step.start().communicate()[0])
    api.requests.clear()
    assert told(step.start().communicate()[0]) == first
    assert not api.requests


def test_success_without_the_ranks_result_is_a_failure(api: ScriptedApi, step: LaunchingStep) -> None:
    api.script = [JobState(condition("Created", "Running", "Succeeded"))]
    process = step.start()
    output = process.communicate()[0]
    assert process.returncode == 1
    assert "the job did not finish" in output and "result.json is not there" in output
    assert (step.attempt(1) / "failure.json").exists()


def unreadable(monkeypatch: pytest.MonkeyPatch, launcher: Any, times: int) -> None:
    """The store fails so many times to read the figures of a job that has succeeded."""
    failures = [storage.StorageError("result.json", "busy")] * times
    read = storage.read_json

    def fails(uri: str) -> Any:
        if uri.endswith("result.json") and failures:
            raise failures.pop()
        return read(uri)

    monkeypatch.setattr(storage, "read_json", fails)
    monkeypatch.setattr(launch, "_PAUSE_S", 0)
    monkeypatch.setitem(launch.BACKENDS, "elsewhere", launch.Backend(lambda *_: None, jobs_outlive_launcher=True))
    storage.write_json(str(launcher.uri / "result.json"), {"num_rows": 7})


def test_figures_that_can_not_be_read_for_a_moment_are_not_lost(launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch, launcher, times=3)
    assert launch.launch(launcher.job, "elsewhere") == {"num_rows": 7}


def test_figures_that_can_not_be_read_leave_the_attempt_open(launcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable(monkeypatch, launcher, times=3)
    monkeypatch.setattr(launch, "_PATIENCE_S", 0)
    with pytest.raises(JobFailed, match=r"what rank 0 wrote can't be read: .*busy") as caught:
        launch.launch(launcher.job, "elsewhere")
    assert caught.value.leaves_open


def test_a_job_that_was_never_created_is_created_in_its_attempt(api: ScriptedApi, launcher: Any) -> None:
    storage.create_json(launcher.job.spec_uri, launcher.job.spec.model_dump(mode="json"))
    api.script = [RUNNING, JobState(condition("Succeeded"))]
    launcher.run()
    uid = api.jobs[launcher.job.name]["metadata"]["uid"]
    assert json.loads((launcher.uri / "launched.json").read_text()) == {"job": launcher.job.name, "uid": uid}


def foreign(launcher: Any, **annotations: str) -> dict[str, Any]:
    job = pytorchjob.render(launcher.job)
    job["metadata"]["annotations"] |= annotations
    return job


@pytest.mark.parametrize("beside", [False, True], ids=["found", "conflict"])
def test_a_job_of_another_run_is_left_alone(api: ScriptedApi, launcher: Any, beside: bool) -> None:
    api.add(foreign(launcher, **{"thaw/run-id": "other-9"}))
    before = json.dumps(api.jobs)
    if beside:  # It appears between the look and the create.
        api.faults = [Fault("GET", "/pytorchjobs/", status=404, reason="NotFound")]
    with pytest.raises(ValueError, match=r"(?s)of run 'other-9'.*this is run 'small-1'"):
        launcher.run()
    assert json.dumps(api.jobs) == before
    assert len(api.made("POST")) == beside
    assert not api.made("DELETE") and not api.made("PATCH")


def test_a_job_of_the_same_run_that_does_other_work_is_left_alone(api: ScriptedApi, launcher: Any) -> None:
    api.add(foreign(launcher, **{"thaw/spec-digest": "0" * 64}))
    with pytest.raises(ValueError, match=f"(?s)work {'0' * 64}.*work {launcher.job.spec_digest}"):
        launcher.run()
    assert not api.made("DELETE") and not api.made("PATCH")


@pytest.mark.parametrize("state", [None, FAILED])
def test_an_attempt_that_was_begun_for_other_work_is_over_once_its_job_is(
    api: ScriptedApi, launcher: Any, state: JobState | None
) -> None:
    before = launcher.with_job("training.num_threads=2")
    storage.create_json(before.job.spec_uri, before.job.spec.model_dump(mode="json"))
    if state is not None:
        api.add(pytorchjob.render(before.job))
        api.script = [state]
    with pytest.raises(JobFailed, match=f"begun for work {before.job.spec_digest}") as caught:
        launcher.run()
    assert caught.value.had_ended and not api.made("POST")


def test_an_attempt_whose_job_goes_on_with_other_work_stays_open(api: ScriptedApi, launcher: Any) -> None:
    before = launcher.with_job("training.num_threads=2")
    storage.create_json(before.job.spec_uri, before.job.spec.model_dump(mode="json"))
    api.add(pytorchjob.render(before.job))
    with pytest.raises(ValueError, match=f"its PyTorchJob {before.job.name} goes on") as caught:
        launcher.run()
    assert caught.value.leaves_open  # type: ignore[attr-defined]
    assert [each.method for each in api.requests] == ["GET"]


def test_the_deadline_goes_on_from_when_the_job_began(api: ScriptedApi, launcher: Any) -> None:
    def began(job: dict[str, Any]) -> None:
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=17)
        job["status"]["startTime"] = begin.isoformat(timespec="seconds")

    api.add(pytorchjob.render(launcher.job))
    api.script = [JobState(RUNNING.conditions, BOTH_RUN, act=began)]
    with pytest.raises(JobFailed, match=r"not done after 20 s \(cluster\.deadline_s\)"):
        launcher.run()
    assert 1 <= launcher.now_s <= 3


@pytest.mark.parametrize(
    ("variables", "owners"),
    [
        ({}, None),
        ({"POD_NAME": "p", "POD_UID": "1"}, ["p"]),
        ({"POD_NAME": "p", "POD_UID": "1", "KFP_POD_NAME": "k", "KFP_POD_UID": "2"}, ["k"]),
    ],
)
def test_the_steps_pod_owns_the_job(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], owners: Any
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    api.script = [JobState(condition("Succeeded"))]
    launcher.run()
    sent = api.made("POST")[0].body["metadata"].get("ownerReferences")
    assert (sent and [owner["name"] for owner in sent]) == owners
    assert not sent or "controller" not in sent[0]
    assert not api.made("PATCH")


def test_a_pod_of_another_namespace_owns_nothing(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "namespace").write_text("kubeflow")
    monkeypatch.setattr(access, "POD_NAMESPACE_PATH", tmp_path / "namespace")
    monkeypatch.setenv("KFP_POD_NAME", "p")
    monkeypatch.setenv("KFP_POD_UID", "1")
    api.script = [JobState(condition("Succeeded"))]
    launcher.run()
    assert "ownerReferences" not in api.made("POST")[0].body["metadata"]
