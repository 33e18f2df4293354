"""What is told of a job that failed."""

from typing import Any

import pytest
from scripted_api import BOTH_RUN, Fault, JobState, PodState, ScriptedApi, condition

from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.kubernetes.pods import replicas

LOST = "torch.distributed.DistNetworkError: Connection closed by peer"
REPORT = """\
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
  rank      : 1 (local_rank: 0)
  exitcode  : -9 (pid: 17)
  error_file: <N/A>"""


def failed(replica: str, second: int = 0, **state: Any) -> PodState:
    return PodState(replica, "Failed", **{"exit_code": 1, "finished_at": f"2026-03-02T06:00:{second:02}Z", **state})


@pytest.fixture
def failure(api: ScriptedApi, launcher: Any) -> Any:
    """Runs a job whose pods end so; gives its error."""

    def fails(*pods: PodState, failed_kind: str | None = None, **logs: str) -> JobFailed:
        api.logs = {f"{launcher.job.name}-{name.replace('_', '-')}": log.splitlines() for name, log in logs.items()}
        api.script = [
            JobState(condition("Created", "Running"), BOTH_RUN),
            JobState(condition("Created", "Running", "Failed"), pods, failed_kind=failed_kind),
        ]
        with pytest.raises(JobFailed) as caught:
            launcher.run()
        return caught.value

    return fails


# https://github.com/kubeflow/pipelines/issues/407
def test_the_tail_of_every_failed_replica_is_saved_and_shown(failure: Any, launcher: Any) -> None:
    error = failure(
        failed("master-0", second=1),
        failed("worker-0"),
        PodState("worker-1"),
        master_0="step 1\n" + LOST,
        worker_0="reading\nValueError: label 2 in row 7",
        worker_1="still at work",
    )
    assert error.replica == "worker-0"
    assert str(error).splitlines() == [
        f"PyTorchJob {launcher.job.name} failed in worker-0 and stays for 86400 s (cluster.ttl_s); "
        f"{launcher.uri}/logs/worker-0.log ends:",
        "    reading",
        "    ValueError: label 2 in row 7",
        "worker-0 ended with exit code 1: ValueError: label 2 in row 7",
    ]
    assert (launcher.uri / "logs" / "master-0.log").read_text() == f"step 1\n{LOST}\n"
    assert sorted(path.name for path in (launcher.uri / "logs").iterdir()) == ["master-0.log", "worker-0.log"]
    assert launcher.lines[:2] == ["step 1", LOST], "streamed"
    assert launcher.lines[2:] == ["[worker-0] reading", "[worker-0] ValueError: label 2 in row 7"]


# https://github.com/kubeflow/pipelines/issues/13192
def test_the_one_that_failed_first_is_named_though_its_pod_was_deleted_as_the_other_failed(
    failure: Any, launcher: Any
) -> None:
    event = '{"event": "error", "rank": 1, "type": "ValueError", "message": "label 2 in row 7"}'
    error = failure(failed("master-0"), master_0=LOST, worker_0=f"reading\n{event}")
    assert error.replica == "worker-0"
    assert "worker-0 failed: ValueError: label 2 in row 7" in str(error)
    assert (launcher.uri / "logs" / "worker-0.log").read_text() == f"reading\n{event}\n"


def test_of_two_that_failed_of_themselves_the_first_is_named(failure: Any) -> None:
    error = failure(
        failed("master-0", second=9), failed("worker-0", second=3), master_0="KeyError: 1", worker_0="KeyError: 2"
    )
    assert "worker-0 ended with exit code 1: KeyError: 2" in str(error)


def test_one_that_only_noticed_is_not_the_cause_though_it_ended_first(failure: Any) -> None:
    error = failure(failed("master-0"), failed("worker-0", second=5), master_0=LOST, worker_0="OverflowError: id 2")
    assert error.replica == "worker-0"


@pytest.mark.parametrize("exit_code", [1, 137])
def test_memory_that_ran_out_is_told_by_the_containers_status(failure: Any, exit_code: int) -> None:
    error = failure(
        failed("master-0", exit_code=137),
        failed("worker-0", second=5, exit_code=exit_code, reason="OOMKilled"),
        worker_0="step 7",
    )
    assert error.replica == "worker-0"
    assert f"worker-0 ended with exit code {exit_code} (OOMKilled)" in str(error)
    assert error.hint is not None and "memory" in error.hint


def test_the_rank_that_ran_out_of_memory_is_named_where_torchrun_tells(failure: Any) -> None:
    error = failure(failed("worker-0", reason="OOMKilled"), worker_0="step 7\n" + REPORT)
    assert "rank 1 (worker-0) was killed by signal 9, SIGKILL (OOMKilled)" in str(error)
    assert error.last_lines == ("step 7",)


def test_an_eviction_is_told_though_no_container_is_left(failure: Any) -> None:
    evicted = ("Evicted", "The node was low on resource: memory.")
    error = failure(failed("master-0"), failed("worker-0", 5, status=evicted, has_containers=False), master_0=LOST)
    assert "worker-0 failed (Evicted: The node was low on resource: memory.)" in str(error)
    assert (error.exit_code, error.signal) == (None, None)


@pytest.mark.parametrize("pods", [(), (PodState("master-0", deleted=True), PodState("worker-0", deleted=True))])
def test_a_replica_that_is_drained_or_preempted_is_named_though_the_clean_up_deletes_the_others_too(
    failure: Any, launcher: Any, pods: tuple[PodState, ...]
) -> None:
    error = failure(*pods, failed_kind="Worker", master_0="step 7", worker_0="step 6")
    assert error.replica == "worker-0"
    assert "worker-0 failed (its pod was deleted)" in str(error)
    assert (launcher.uri / "logs" / "worker-0.log").read_text() == "step 6\n"


def test_a_pod_that_was_made_anew_is_the_cause_where_the_others_lost_its_connection(failure: Any) -> None:
    error = failure(failed("master-0"), PodState("worker-0", uid="2"), master_0=LOST)
    assert error.replica == "worker-0"
    assert "worker-0 failed (its pod was deleted)" in str(error)


def test_a_pod_that_the_clean_up_deletes_is_not_the_cause(failure: Any) -> None:
    error = failure(
        failed("master-0"), PodState("worker-0", deleted=True), failed_kind="Master", master_0="KeyError: 1"
    )
    assert "master-0 ended with exit code 1: KeyError: 1" in str(error)


def test_a_log_that_can_not_be_had_hides_not_the_cause(failure: Any, launcher: Any, capfd: Any) -> None:
    error = failure(failed("worker-0", exit_code=3))
    assert "worker-0 ended with exit code 3" in str(error)
    assert "the log of worker-0 can't be had" in capfd.readouterr().out


def test_a_failed_job_without_a_pod_is_told_by_its_condition(failure: Any) -> None:
    assert "no replica is left that shows why; last condition Failed: Failed as scripted" in str(failure())


def test_the_masters_log_is_refused_once_where_the_right_is_lacking(api: ScriptedApi, failure: Any, capfd: Any) -> None:
    api.faults = [Fault("GET", "/log$", status=403, message="cannot get resource pods/log", times=100)]
    failure(failed("worker-0"), worker_0="x")
    assert "the Master's log can't be shown here: get pods/log" in capfd.readouterr().out


def test_the_report_takes_a_minute_at_most(api: ScriptedApi, failure: Any, launcher: Any) -> None:
    api.faults = [Fault("GET", "/log$", status=503, times=100000)]
    error = failure(*(failed(f"worker-{index}") for index in range(32)))
    assert "worker-0 ended with exit code 1" in str(error)
    assert launcher.now_s <= 2 + 60


def test_a_job_that_its_queue_took_back_did_not_lose_its_pods(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.queue=team", "cluster.queue_timeout_s=100", "cluster.deadline_s=1000")
    queued = JobState(condition("Created", "Suspended"), suspend=True)
    admitted = (("Created", "True"), ("Suspended", "False"), ("Running", "True"))
    first, second = (
        JobState(admitted, (PodState("master-0", uid=f"m{turn}"), PodState("worker-0", uid=f"w{turn}")), suspend=False)
        for turn in (1, 2)
    )
    api.logs = {f"{launcher.job.name}-worker-0": ["ValueError: bad row 17"]}
    pods = (PodState("master-0", uid="m2", deleted=True), failed("worker-0", uid="w2"))
    last = JobState(condition("Created", "Running", "Failed"), pods, suspend=False, failed_kind="Worker")
    api.script = [queued, first, first, queued, second, second, last]
    with pytest.raises(JobFailed, match="worker-0 ended with exit code 1: ValueError: bad row 17"):
        launcher.run()


def test_a_pod_whose_status_has_null_lists_is_one_that_says_nothing() -> None:
    status = {"phase": "Pending", "containerStatuses": None, "initContainerStatuses": None, "conditions": None}
    (replica,) = replicas("job", [{"metadata": {"name": "job-master-0", "uid": "1"}, "status": status}])
    assert (replica.started, replica.waits_for) == (False, None)
