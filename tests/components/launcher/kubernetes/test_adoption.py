"""Which job is an attempt's own, and whose it is while several starts of its step are at work."""

from typing import Any

import pytest
from launcher_jobs import stage_job
from scripted_api import BOTH_RUN, Fault, JobState, ScriptedApi, condition

from thaw.components import storage
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.kubernetes.client import Api

RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)
SUCCEEDED = JobState(condition("Created", "Running", "Succeeded"))
FIRST, THIRD = ([{"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid}] for uid in ("uid-1", "uid-3"))


@pytest.fixture
def second(api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launcher of a second pod, whose job the first one created."""
    monkeypatch.setenv("KFP_POD_NAME", "second")
    monkeypatch.setenv("KFP_POD_UID", "uid-2")
    api.add(pytorchjob.render(launcher.job))["metadata"]["ownerReferences"] = FIRST
    api.script = [RUNNING, RUNNING, SUCCEEDED]
    return launcher


def owner(api: ScriptedApi) -> str:
    (job,) = api.jobs.values()
    return str(job["metadata"]["ownerReferences"][0]["uid"])


def test_a_job_that_goes_while_it_is_taken_up_had_ended(api: ScriptedApi, second: Any) -> None:
    api.faults = [Fault("PATCH", "", status=404, reason="NotFound")]
    with pytest.raises(JobFailed, match="no longer exists") as caught:
        second.run()
    assert caught.value.had_ended


def test_a_job_that_changes_while_it_is_taken_up_is_taken_up_again(api: ScriptedApi, second: Any) -> None:
    api.faults = [Fault("PATCH", "", status=409, reason="Conflict")]
    second.run()
    assert owner(api) == "uid-2" and len(api.made("PATCH")) == 2


def test_a_job_whose_owner_may_not_be_changed_goes_on(api: ScriptedApi, second: Any, capfd: Any) -> None:
    api.faults = [Fault("PATCH", "", status=403)]
    second.run()
    assert "stays with the pod" in capfd.readouterr().out
    assert owner(api) == "uid-1" and not api.made("DELETE")


def test_a_slow_launcher_does_not_take_the_job_from_a_newer_one(api: ScriptedApi, second: Any) -> None:
    def taken(job: dict[str, Any]) -> None:
        job["metadata"] |= {"ownerReferences": THIRD, "resourceVersion": "77"}

    api.faults = [Fault("PATCH", "", status=409)]
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=taken), SUCCEEDED]
    second.run()
    assert owner(api) == "uid-3" and len(api.made("PATCH")) == 1


def test_a_launcher_whose_create_comes_late_leaves_the_job_with_the_one_that_was_faster(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "second")
    monkeypatch.setenv("KFP_POD_UID", "uid-2")
    create = Api.create_job

    def late(self: Api, manifest: dict[str, Any], patience_s: float) -> dict[str, Any]:
        job = api.add(pytorchjob.render(launcher.job))
        job["metadata"]["ownerReferences"] = THIRD
        launched = {"job": launcher.job.name, "uid": job["metadata"]["uid"]}
        storage.create_json(str(launcher.uri / "launched.json"), launched)
        return create(self, manifest, patience_s)

    monkeypatch.setattr(Api, "create_job", late)
    api.script = [RUNNING, RUNNING, SUCCEEDED]
    launcher.run()
    assert owner(api) == "uid-3" and not api.made("PATCH")


def created_late(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch, name: str, content: Any
) -> JobFailed:
    """The failure of a launcher beside whose create another start of the step writes a document."""
    create = Api.create_job

    def late(self: Api, manifest: dict[str, Any], patience_s: float) -> dict[str, Any]:
        storage.create_json(str(launcher.uri / name), content)
        return create(self, manifest, patience_s)

    monkeypatch.setattr(Api, "create_job", late)
    with pytest.raises(JobFailed) as caught:
        launcher.run()
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("launched.json", {"job": "the same", "uid": "the-first"}, "created after the-first, the attempt's own"),
        ("failure.json", {}, "created when its attempt had failed"),
    ],
)
def test_a_job_that_is_created_after_its_attempt_is_over_is_withdrawn(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch, name: str, content: Any, words: str
) -> None:
    error = created_late(api, launcher, monkeypatch, name, content)
    assert words in str(error) and "was deleted" in str(error)
    assert error.leaves_open and not api.jobs


def test_a_job_that_another_start_has_taken_up_is_not_deleted(api: ScriptedApi, second: Any) -> None:
    def taken(job: dict[str, Any]) -> None:
        job["metadata"]["ownerReferences"] = THIRD

    api.script = [JobState(condition("Created")), JobState(condition("Created"), act=taken)]
    with pytest.raises(JobFailed, match="is left to another start of the step") as caught:
        second.run()
    assert caught.value.leaves_open and not caught.value.had_ended
    assert not api.made("DELETE") and api.jobs


def test_a_job_that_is_taken_up_beside_its_deletion_stays(api: ScriptedApi, second: Any) -> None:
    job = api.jobs[second.job.name]

    def taken(job: dict[str, Any]) -> None:
        job["metadata"] |= {"ownerReferences": THIRD, "resourceVersion": "77"}

    stale = JobState(condition("Created"))
    api.script = [stale, JobState(condition("Created", "Running"), act=taken)]
    api.faults = [Fault("DELETE", "", status=409, reason="Conflict")]
    pause = lambda _: None  # noqa: E731
    assert not Api("default", pause=pause).delete_job(second.job.name, job["metadata"]["uid"], owner="uid-1")
    (asked,) = api.made("DELETE")
    assert asked.body["preconditions"] == {"uid": job["metadata"]["uid"], "resourceVersion": "1"}


def test_a_launcher_outside_of_a_pod_deletes_no_job_that_a_pod_has_taken_up(api: ScriptedApi, launcher: Any) -> None:
    def taken(job: dict[str, Any]) -> None:
        job["metadata"]["ownerReferences"] = THIRD

    api.script = [JobState(condition("Created")), JobState(condition("Created"), act=taken)]
    with pytest.raises(JobFailed, match="is left to another start of the step") as caught:
        launcher.run()
    assert caught.value.leaves_open and api.jobs


@pytest.mark.parametrize("refused", ["/pods$", "/pytorchjobs/.*$"])
def test_a_running_job_that_was_taken_up_is_not_deleted_for_what_befalls_its_launcher(
    api: ScriptedApi, second: Any, refused: str
) -> None:
    forbidden = Fault("GET", refused, status=403, times=100)
    act = lambda _: api.faults.append(forbidden)  # noqa: E731
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=act), RUNNING]
    with pytest.raises(JobFailed, match="lives on") as caught:
        second.run()
    assert caught.value.leaves_open and not api.made("DELETE")


def test_what_nobody_thought_of_is_told_with_its_type(api: ScriptedApi, launcher: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(pytorchjob, "state", lambda job: job["nothing"])
    with pytest.raises(JobFailed, match="KeyError: 'nothing'"):
        launcher.run()


def test_a_job_of_the_same_work_in_another_store_is_left_alone(api: ScriptedApi, launcher: Any) -> None:
    other = stage_job(launcher.job.config, output_uri="gs://other/train-frozen/attempt-1")
    assert other.name == launcher.job.name
    api.add(pytorchjob.render(other))
    with pytest.raises(ValueError, match=r"recorded in gs://other/.*/job\.json; this is .*left alone"):
        launcher.run()
    assert [each.method for each in api.requests] == ["GET"]


def test_a_job_that_is_not_the_one_that_was_launched_is_left_alone(api: ScriptedApi, launcher: Any) -> None:
    storage.create_json(launcher.job.spec_uri, launcher.job.spec.model_dump(mode="json"))
    storage.create_json(str(launcher.uri / "launched.json"), {"job": launcher.job.name, "uid": "the-first"})
    api.add(pytorchjob.render(launcher.job))
    with pytest.raises(ValueError, match="the one that this attempt launched had the-first"):
        launcher.run()
    assert [each.method for each in api.requests] == ["GET"]
