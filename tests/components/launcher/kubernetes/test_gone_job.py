"""A job that is gone, or on its way out, and nobody said so to its launcher."""

from collections.abc import Callable
from typing import Any

import pytest
from scripted_api import BOTH_RUN, Fault, JobState, ScriptedApi, condition

from thaw.components import storage
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.failure import JobFailed

RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)
GONE = JobState(gone=True)


def failure(launcher: Any) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        launcher.run()
    return caught.value


def deleting(job: dict[str, Any]) -> None:
    job["metadata"]["deletionTimestamp"] = "2026-03-02T06:00:00Z"


DELETING = JobState(condition("Created", "Running"), BOTH_RUN, act=deleting)


def test_a_job_that_is_said_to_be_gone_does_not_live_on(api: ScriptedApi, launcher: Any) -> None:
    lie = Fault("GET", "/pytorchjobs/", status=404, reason="NotFound")
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=lambda _: api.faults.append(lie))]
    assert "no longer exists" in str(failure(launcher))
    assert not api.jobs


def test_where_a_job_can_not_be_made_sure_to_be_gone_the_attempt_stays_open(api: ScriptedApi, launcher: Any) -> None:
    api.faults = [Fault("DELETE", "", status=503, times=1000)]
    api.script = [RUNNING, GONE]
    assert failure(launcher).leaves_open


def test_the_logs_of_a_job_that_is_gone_are_saved(api: ScriptedApi, launcher: Any) -> None:
    api.logs = {f"{launcher.job.name}-worker-0": ["step 1", "step 2"]}
    api.script = [RUNNING, RUNNING, GONE]
    failure(launcher)
    assert (launcher.uri / "logs" / "worker-0.log").read_text() == "step 1\nstep 2\n"


def test_a_job_that_is_gone_with_its_work_done_has_succeeded(
    api: ScriptedApi, launcher: Any, finished: Callable[[dict[str, Any]], None]
) -> None:
    def finishes(job: dict[str, Any]) -> None:
        finished(job)
        api.jobs.clear()

    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=finishes)]
    launcher.run()
    launcher.run()
    assert len(api.made("POST")) == 1, "the second finds what the first left"


def test_a_job_on_its_way_out_is_not_taken_up(api: ScriptedApi, launcher: Any) -> None:
    deleting(api.add(pytorchjob.render(launcher.job)))
    api.script = [RUNNING, RUNNING, GONE]
    error = failure(launcher)
    assert error.had_ended and "no longer exists" in str(error)
    assert not api.made("PATCH") and not api.made("POST")


def test_a_job_that_is_deleted_and_does_not_go_is_waited_for_as_long_as_a_start(
    api: ScriptedApi, launcher: Any
) -> None:
    api.script = [RUNNING, RUNNING, DELETING]
    error = failure(launcher)
    assert 5 <= launcher.now_s <= 9
    assert "is not gone after 5 s (cluster.start_timeout_s)" in str(error)
    assert error.leaves_open and error.hint is not None and "finalizers" in error.hint


def test_a_job_that_is_deleted_in_mid_run_is_gone(api: ScriptedApi, launcher: Any) -> None:
    api.script = [RUNNING, DELETING, GONE]
    error = failure(launcher)
    assert "no longer exists: somebody else deleted it" in str(error) and not error.leaves_open


def test_an_unreadable_store_leaves_a_job_that_is_gone_open(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(uri: str) -> bool:
        raise storage.StorageError(uri, "busy")

    api.script = [RUNNING, JobState(gone=True, act=lambda _: monkeypatch.setattr(storage, "exists", unreadable))]
    assert failure(launcher).leaves_open
