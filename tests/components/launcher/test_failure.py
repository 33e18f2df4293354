"""Which replica is to blame, from the ends of their logs as torchrun (torch 2.13) and gloo write them."""

import json

import pytest

from thaw.components.launcher.failure import JobFailed, ReplicaEnd, job_failed, root_cause

LOST = (
    "RuntimeError: [/__w/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:14225. "
    "This is typically caused by a remote worker crashing."
)


def report(*failures: tuple[int, int]) -> list[str]:
    """What an agent writes in the end. Each failure: rank, exit code."""
    blocks = []
    for index, (rank, exit_code) in enumerate(failures):
        blocks += [
            f"[{index}]:",
            "  time      : 2026-11-29_22:53:27",
            "  host      : localhost",
            f"  rank      : {rank} (local_rank: {index})",
            f"  exitcode  : {exit_code} (pid: 21679) " + (" (SIGKILL)" if exit_code == -9 else ""),
            "  error_file: <N/A>",
            "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ]
    return [
        "E1129 22:53:27.539000 21677 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)",
        "Traceback (most recent call last):",
        '  File "/venv/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "thaw.components.train FAILED",
        "------------------------------------------------------------",
        "Failures:",
        *(blocks[7:] or ["  <NO_OTHER_FAILURES>"]),
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        *blocks[:7],
        "============================================================",
    ]


def traceback(rank: int, error: str) -> list[str]:
    lines = ["Traceback (most recent call last):", '  File "/app/train.py", line 10, in main', "    step()", error]
    return [f"[rank{rank}]: {line}" for line in lines]


def event(rank: int, kind: str, message: str, **more: str) -> str:
    return json.dumps({"event": "error", "rank": rank, "type": kind, "message": message, **more})


def progress(step: int) -> str:
    return json.dumps({"event": "progress", "stage": "train-frozen", "step": step})


def failed(*ends: ReplicaEnd) -> JobFailed:
    return job_failed(
        "small-train-frozen-0123456789-a1", ends, {end.replica: f"/logs/{end.replica}.log" for end in ends}
    )


def test_a_killed_rank_comes_before_those_that_lost_its_connection() -> None:
    noticed = ReplicaEnd("master-0", 1, [*traceback(0, LOST), *report((0, 1))])
    killed = ReplicaEnd("worker-0", 1, ["rank 1 starts", progress(20), *report((1, -9))])
    error = failed(noticed, killed)
    assert (error.replica, error.rank, error.exit_code, error.signal) == ("worker-0", 1, None, 9)
    assert str(error).splitlines() == [
        "PyTorchJob small-train-frozen-0123456789-a1 failed in worker-0; /logs/worker-0.log ends:",
        "    rank 1 starts",
        "rank 1 (worker-0) was killed by signal 9, SIGKILL (the kernel does that where memory runs out)",
    ]
    assert error.hint and "memory" in error.hint


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
        "(small-master-0, 23456). The IPv6 network addresses of (small-master-0, 23456) cannot be retrieved",
    ],
)
def test_replicas_that_did_not_find_each_other_are_told_what_to_look_at(error: str) -> None:
    alone = failed(ReplicaEnd("master-0", 1, ["Traceback (most recent call last):", "    next_rendezvous()", error]))
    assert error in str(alone)
    assert alone.hint and "cluster's DNS" in alone.hint


def test_an_exception_comes_before_those_that_lost_its_connection() -> None:
    noticed = ReplicaEnd("master-0", 1, [event(0, "RuntimeError", LOST), *report((0, 1))])
    raised = ReplicaEnd("worker-3", 1, [*traceback(4, "ValueError: no column 'click'"), *report((4, 1))])
    error = failed(noticed, raised)
    assert (error.replica, error.rank, error.exit_code, error.signal) == ("worker-3", 4, 1, None)
    assert str(error).splitlines()[-1] == "rank 4 (worker-3) ended with exit code 1: ValueError: no column 'click'"


def test_the_error_event_says_more_than_the_traceback() -> None:
    said = event(0, "ValueError", "no column 'click'", where="day 2026-03-01, part-0.parquet")
    error = failed(ReplicaEnd("master-0", 1, [*traceback(0, "ValueError: no"), said, *report((0, 1))]))
    assert str(error).splitlines()[-1] == (
        "rank 0 (master-0) ended with exit code 1: ValueError: no column 'click' (day 2026-03-01, part-0.parquet)"
    )
    assert error.last_lines[-1] == "[rank0]: ValueError: no"


def test_the_rank_that_raised_comes_before_its_neighbours_that_the_agent_ended() -> None:
    lines = [*traceback(3, "KeyError: 'save'"), *report((2, -15), (3, 1))]
    cause = root_cause([ReplicaEnd("worker-0", 1, lines)])
    assert (cause.rank, cause.said) == (3, "KeyError: 'save'")


def test_each_of_two_ranks_of_a_replica_is_given_its_own_error() -> None:
    lines = [*traceback(0, "KeyError: 'save'"), *traceback(1, LOST), *report((1, 1), (0, 1))]
    cause = root_cause([ReplicaEnd("master-0", 1, lines)])
    assert (cause.rank, cause.said) == (0, "KeyError: 'save'")


def test_an_abort_by_the_watchdog_of_nccl_only_notices() -> None:
    what = "  what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
    noticed = ReplicaEnd("master-0", 1, [what, *report((0, -6))])
    raised = ReplicaEnd("worker-0", 1, [*traceback(1, "ValueError: no column 'click'"), *report((1, 1))])
    assert root_cause([noticed, raised]).rank == 1


def test_an_agent_that_dies_itself_is_named_without_rank() -> None:
    error = failed(ReplicaEnd("worker-0", 2, ["torchrun: error: unrecognized arguments: --nope"]))
    assert (error.replica, error.rank, error.exit_code) == ("worker-0", None, 2)
    assert str(error).splitlines()[-2:] == [
        "    torchrun: error: unrecognized arguments: --nope",
        "worker-0 ended with exit code 2",
    ]
    killed = failed(ReplicaEnd("worker-0", -11, []))
    assert str(killed).splitlines() == [
        "PyTorchJob small-train-frozen-0123456789-a1 failed in worker-0; its log is /logs/worker-0.log",
        "worker-0 was killed by signal 11, SIGSEGV",
    ]


def test_where_all_only_noticed_the_first_to_end_is_named() -> None:
    ends = [ReplicaEnd(f"worker-{n}", 1, [*traceback(n + 1, LOST), *report((n + 1, 1))]) for n in (1, 0)]
    assert root_cause(ends).replica == "worker-1"


def test_the_message_has_three_to_ten_lines_however_much_was_logged() -> None:
    lines = [f"line {n} " + "x" * 2000 for n in range(300)]
    error = failed(ReplicaEnd("master-0", 1, [*lines, *traceback(0, "OSError: disk full"), *report((0, 1))]))
    assert 3 <= len(str(error).splitlines()) <= 10
    assert max(map(len, str(error).splitlines())) < 400
    assert "ChildFailedError" not in str(error)
