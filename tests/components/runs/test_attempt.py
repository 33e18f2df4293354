import multiprocessing
import os
import socket
from pathlib import Path

from thaw.components import storage
from thaw.components.runs import begin_attempt, committed_attempt
from thaw.components.runs.attempt import Attempt


def test_each_try_is_an_attempt_with_a_claim(store_uri: str) -> None:
    run_uri = storage.join(store_uri, "runs", "r1")
    attempts = [begin_attempt(run_uri, "evaluate") for _ in range(3)]
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert attempts[1].uri == storage.join(run_uri, "evaluate", "attempt-2")
    assert attempts[1].run_id == "r1"
    claim = storage.read_json(storage.join(attempts[1].uri, "claim.json"))
    assert (claim["host"], claim["pid"]) == (socket.gethostname(), os.getpid())


def begin_one(run_uri: str) -> Attempt:
    return begin_attempt(run_uri, "train-frozen")


def test_processes_that_begin_at_once_get_an_attempt_each(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        attempts = pool.map(begin_one, [str(tmp_path)] * 6, chunksize=1)
    assert sorted(attempt.number for attempt in attempts) == [1, 2, 3, 4, 5, 6]


def test_the_newest_attempt_with_a_manifest_is_the_committed_one(store_uri: str) -> None:
    assert committed_attempt(store_uri, "evaluate") is None
    first, second, _third = (begin_attempt(store_uri, "evaluate") for _ in range(3))
    assert committed_attempt(store_uri, "evaluate") is None
    for attempt in (first, second):
        storage.write_json(storage.join(attempt.uri, "manifest.json"), {})
    assert committed_attempt(store_uri, "evaluate") == second.uri


def test_the_tenth_attempt_comes_after_the_ninth(tmp_path: Path) -> None:
    for _ in range(11):
        attempt = begin_attempt(str(tmp_path), "evaluate")
        storage.write_json(storage.join(attempt.uri, "manifest.json"), {})
    assert committed_attempt(str(tmp_path), "evaluate") == f"{tmp_path}/evaluate/attempt-11"
