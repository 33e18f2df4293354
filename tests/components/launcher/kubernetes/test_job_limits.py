"""When the launcher waits for a job no longer."""

from typing import Any

import pytest
from scripted_api import BOTH_RUN, Fault, JobState, PodState, ScriptedApi, condition

from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.kubernetes import run

CREATED = JobState(condition("Created"))
RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)
SUCCEEDED = JobState(condition("Created", "Running", "Succeeded"))


def failure(launcher: Any) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        launcher.run()
    return caught.value


def test_a_job_that_succeeds_is_waited_for_and_left_alone(api: ScriptedApi, launcher: Any) -> None:
    api.script = [CREATED, RUNNING, SUCCEEDED]
    launcher.run()
    assert launcher.pauses == [1, 1, 1]
    assert len(api.made("POST")) == 1
    assert not api.made("DELETE")


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_deciding_condition_may_stand_anywhere(api: ScriptedApi, launcher: Any, position: int) -> None:
    others = [("Created", "True"), ("Running", "False")]
    others.insert(position, ("Succeeded", "True"))
    api.script = [JobState(tuple(others))]
    launcher.run()
    assert launcher.pauses == [1]


# https://github.com/kubeflow/pipelines/issues/8051
def test_a_failed_job_fails_within_one_look(api: ScriptedApi, launcher: Any) -> None:
    killed = PodState("worker-1", "Failed", 137, finished_at="2026-03-02T06:00:00Z")
    api.script = [CREATED, RUNNING, JobState(condition("Created", "Running", "Failed"), (*BOTH_RUN, killed))]
    error = failure(launcher)
    assert launcher.pauses == [1, 1, 1]
    assert launcher.job.name in str(error)
    assert "worker-1 ended with exit code 137 (SIGKILL)" in str(error)
    assert (error.replica, error.exit_code, error.leaves_open) == ("worker-1", 137, False)
    assert "stays for 86400 s (cluster.ttl_s)" in str(error)
    assert not api.made("DELETE")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState(), "no condition"),
        (CREATED, "last condition Created"),
        (JobState(condition("Created", "Suspended")), "it is suspended, and has no queue"),
    ],
    ids=["no status", "created", "suspended"],
)
def test_a_job_that_does_not_start_is_deleted_after_the_limit(
    api: ScriptedApi, launcher: Any, state: JobState, words: str
) -> None:
    api.script = [state]
    error = failure(launcher)
    assert launcher.now_s == 5
    assert f"{launcher.job.name} failed and was deleted" in str(error)
    assert "not started after 5 s (cluster.start_timeout_s)" in str(error)
    assert words in str(error)
    assert len(api.made("DELETE")) == 1 and not api.jobs


# https://github.com/kubeflow/trainer/issues/2044
def test_a_job_that_is_started_again_for_ever_ends_at_the_deadline(api: ScriptedApi, launcher: Any) -> None:
    api.script = [CREATED, JobState(condition("Created", "Running", "Restarting"))]
    error = failure(launcher)
    assert launcher.now_s == 20
    assert "not done after 20 s (cluster.deadline_s); last condition Restarting" in str(error)
    assert "was deleted" in str(error)
    assert len(api.made("DELETE")) == 1


def test_a_job_that_hangs_leaves_the_logs_of_all_that_ran(api: ScriptedApi, launcher: Any) -> None:
    api.script = [RUNNING]
    api.logs = {f"{launcher.job.name}-{replica}": [f"the last of {replica}"] for replica in ("master-0", "worker-0")}
    error = failure(launcher)
    assert "cluster.deadline_s" in str(error) and error.last_lines == ("the last of master-0",)
    for replica in ("master-0", "worker-0"):
        assert (launcher.uri / "logs" / f"{replica}.log").read_text() == f"the last of {replica}\n"
    reads = [index for index, each in enumerate(api.requests) if "tailLines" in each.query]
    assert max(reads) < api.requests.index(api.made("DELETE")[0])


def test_time_in_a_queue_counts_for_the_queues_limit_alone(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.queue=team", "cluster.queue_timeout_s=100")
    queued = JobState(condition("Created", "Suspended"), suspend=True)
    admitted = JobState((("Created", "True"), ("Suspended", "False"), ("Running", "True")), BOTH_RUN, suspend=False)
    api.script = [queued] * 30 + [admitted] * 10 + [SUCCEEDED]
    launcher.run()
    assert launcher.now_s == 41


def test_a_job_that_its_queue_never_lets_in_is_deleted(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.queue=team", "cluster.queue_timeout_s=50")
    api.script = [JobState(condition("Created", "Suspended"))]
    error = failure(launcher)
    assert launcher.now_s == 50
    assert "queue team did not let it in for 50 s (cluster.queue_timeout_s)" in str(error)
    assert len(api.made("DELETE")) == 1


def test_a_job_that_its_queue_lets_in_and_nobody_starts_is_deleted(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.queue=team")
    queued = JobState(condition("Created", "Suspended"), suspend=True)
    api.script = [queued] * 10 + [JobState((("Created", "True"), ("Suspended", "False")), suspend=False)]
    assert "not started after 5 s" in str(failure(launcher))
    assert launcher.now_s == 15


def pending(replica: str = "worker-0", **state: Any) -> PodState:
    return PodState(replica, "Pending", **state)


# https://github.com/kubeflow/trainer/issues/1543
@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (pending(unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu."), "Insufficient nvidia"),
        (
            pending(waiting=("ImagePullBackOff", 'Back-off pulling image "x"')),
            "ImagePullBackOff: Back-off pulling image",
        ),
    ],
    ids=["unschedulable", "image"],
)
def test_one_replica_that_can_not_start_is_named_though_the_other_runs(
    api: ScriptedApi, launcher: Any, pod: PodState, words: str
) -> None:
    api.script = [JobState(condition("Created", "Running"), (PodState("master-0"), pod))]
    error = failure(launcher)
    assert launcher.now_s == 5
    assert error.replica == "worker-0"
    assert "failed in worker-0 and was deleted" in str(error)
    assert "not started" in str(error) and words in str(error)


def test_an_image_name_that_is_none_ends_the_job_at_once(api: ScriptedApi, launcher: Any) -> None:
    waiting = ("InvalidImageName", 'Failed to apply default image tag "A B": couldn\'t parse')
    api.script = [CREATED, JobState(condition("Created"), (pending("master-0", waiting=waiting),))]
    error = failure(launcher)
    assert launcher.now_s == 2
    assert "master-0 can't start: InvalidImageName: Failed to apply" in str(error)
    assert len(api.made("DELETE")) == 1


def test_pods_that_a_quota_refuses_are_explained_by_the_jobs_events(api: ScriptedApi, launcher: Any) -> None:
    api.script = [CREATED]
    name = launcher.job.name
    about = {"involvedObject": {"name": name}, "lastTimestamp": "2026-03-02T06:00:00Z"}
    refused = 'Error creating: pods "x" is forbidden: exceeded quota: gpus'
    api.events = [
        {**about, "type": "Warning", "reason": "FailedCreatePod", "message": refused},
        {**about, "type": "Normal", "reason": "SuccessfulCreateService", "message": "Created service"},
    ]
    error = failure(launcher)
    assert f"{name}: FailedCreatePod: {refused}" in str(error)
    assert "SuccessfulCreateService" not in str(error)
    assert api.requests.index(api.made("GET", "/events")[0]) < api.requests.index(api.made("DELETE")[0])


# https://github.com/kubeflow/trainer/issues/1589
def test_containers_that_are_started_again_and_again_end_the_job(api: ScriptedApi, launcher: Any) -> None:
    def restarted(times: int) -> JobState:
        return JobState(condition("Created", "Running"), (PodState("master-0"), PodState("worker-0", restarts=times)))

    api.script = [restarted(times) for times in range(10)]
    error = failure(launcher)
    assert error.replica == "worker-0"
    assert "worker-0's 4 times" in str(error)
    assert len(api.made("DELETE")) == 1


@pytest.mark.parametrize(
    "ended", [PodState("worker-0", "Failed", 3), PodState("master-0", "Succeeded", 0)], ids=["failed", "done"]
)
def test_a_job_whose_operator_is_gone_ends_with_its_pods(api: ScriptedApi, launcher: Any, ended: PodState) -> None:
    others = [pod for pod in BOTH_RUN if pod.replica != ended.replica]
    api.script = [RUNNING] * 5 + [JobState(condition("Created", "Running"), (*others, ended))]
    error = failure(launcher)
    assert launcher.now_s == 11
    assert f"{ended.replica} ended with exit code {ended.exit_code}, and in 5 s" in str(error)
    assert error.hint == "see that the training operator runs"


def test_a_job_that_has_done_its_work_needs_no_operator_to_say_so(api: ScriptedApi, launcher: Any) -> None:
    def done(_: Any) -> None:
        (launcher.uri / "result.json").write_text("{}")

    api.script = [RUNNING, JobState(condition("Created", "Running"), (PodState("master-0", "Succeeded", 0),), act=done)]
    launcher.run()
    assert not api.made("DELETE")


def test_an_end_that_is_seen_only_after_an_outage_leaves_the_operator_its_time(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.deadline_s=1000")
    ended = JobState(condition("Created", "Running"), (PodState("master-0", "Succeeded", 0),))
    outage = Fault("GET", "/pytorchjobs/", status=503, times=6)
    api.script = [JobState(condition("Created", "Running"), BOTH_RUN, act=lambda _: api.faults.append(outage))]
    api.script += [ended, ended, SUCCEEDED]
    launcher.run()
    assert launcher.now_s > 20 and not api.made("DELETE")


def test_a_job_that_is_suspended_in_mid_run_has_the_time_of_a_start(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.deadline_s=1000")
    suspended = JobState((("Created", "True"), ("Running", "False"), ("Suspended", "True")), suspend=True)
    api.script = [RUNNING] * 3 + [suspended]
    error = failure(launcher)
    assert "not started after 5 s" in str(error) and launcher.now_s < 12


def test_a_job_whose_queue_let_it_in_is_no_longer_queued(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.queue=team", "cluster.deadline_s=1000")
    api.script = [JobState(condition("Created", "Suspended"), suspend=False)]
    assert "not started after 5 s" in str(failure(launcher))


@pytest.mark.parametrize("ahead_s", [600, 10**6])
def test_a_clock_that_is_ahead_ends_no_job(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    age_s = run._age_s
    monkeypatch.setattr(run, "_age_s", lambda state: age_s(state) + ahead_s)
    api.script = [CREATED, RUNNING, SUCCEEDED]
    launcher.run()
    assert not api.made("DELETE")


def test_a_pod_that_never_goes_ends_the_job(api: ScriptedApi, launcher: Any) -> None:
    leaving = (PodState("master-0"), PodState("worker-0", deleted=True))
    api.script = [RUNNING] * 5 + [JobState(condition("Created", "Running"), leaving)]
    error = failure(launcher)
    assert launcher.now_s == 11
    assert error.replica == "worker-0" and "worker-0's pod is being deleted, and is not gone after 5 s" in str(error)
    assert error.hint is not None and f"{launcher.job.name}-worker-0" in error.hint


def test_pods_that_go_one_after_the_other_are_waited_for(api: ScriptedApi, launcher: Any) -> None:
    leaving = JobState(condition("Created", "Restarting"), (PodState("master-0"), PodState("worker-0", deleted=True)))
    api.script = [RUNNING, *([leaving] * 4), RUNNING, *([leaving] * 4), RUNNING, SUCCEEDED]
    launcher.run()


def test_a_job_that_can_not_be_deleted_is_told_to_live_on(api: ScriptedApi, launcher: Any) -> None:

    api.faults = [Fault("DELETE", launcher.job.name, status=503, times=100)]
    error = failure(launcher)
    assert error.leaves_open
    assert "lives on until its lease runs out (cluster.lease_timeout_s)" in str(error)
