"""The two sides of a lease in processes of their own: one renews, the other lives as long as that goes on."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from thaw.components import events, lease, storage
from thaw.components.lease import LEASE

TIMEOUT_S = 6
LAUNCHER = """
import signal, sys
from thaw.components import lease
with lease.renewed(sys.argv[1], float(sys.argv[2])):
    print("renewed", flush=True)
    signal.pause()
"""
RANK_0 = """
import os, signal, sys
from thaw.components import lease
def lost(error):
    print(error, flush=True)
    os._exit(1)
lease.watch(sys.argv[1], float(sys.argv[2]), lost)
signal.pause()
"""

FORKS = """
import os, sys, time
from thaw.components import lease
lease.watch(sys.argv[1], float(sys.argv[2]), lambda error: os._exit(1))
while not lease._reading.locked():
    time.sleep(0.01)
print("reading", flush=True)
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with lease._reading:
    print("the child went on", flush=True)
os._exit(0)
"""


@contextmanager
def process(source: str, uri: str, timeout_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", source, uri, str(timeout_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


@contextmanager
def launcher(uri: str, timeout_s: float) -> Iterator[subprocess.Popen[str]]:
    """A process that renews a lease, seen to have begun."""
    with process(LAUNCHER, uri, timeout_s) as started:
        assert started.stdout is not None and started.stdout.readline() == "renewed\n"
        yield started


def wait_for_renewal(uri: str, number: int) -> None:
    """Returns once the lease has been renewed so often."""
    while storage.read_json(uri)["renewal"] < number:
        threading.Event().wait(0.05)


def test_rank_0_lives_while_any_launcher_does_and_ends_with_clear_words_when_the_last_is_killed(tmp_path: Path) -> None:
    uri = str(tmp_path / LEASE)
    with launcher(uri, TIMEOUT_S) as first, process(RANK_0, uri, TIMEOUT_S) as rank:
        holder = storage.read_json(uri)["holder"]
        first.kill()
        with launcher(uri, TIMEOUT_S) as second:
            wait_for_renewal(uri, lease.LOOKS + 1)  # More than a time-out has passed.
            assert storage.read_json(uri)["holder"] != holder
            assert rank.poll() is None
            second.kill()
            words, _ = rank.communicate(timeout=60)
            assert rank.returncode == 1
    assert f"the lease {uri} has not been renewed for 6 s (cluster.lease_timeout_s)" in words
    assert "the job ends itself" in words


def test_a_read_that_never_returns_is_as_no_renewal(tmp_path: Path) -> None:
    pipe = tmp_path / LEASE
    os.mkfifo(pipe)  # Nobody ever writes into it: whoever opens it waits.
    with process(RANK_0, str(pipe), 0.2) as rank:
        words, _ = rank.communicate(timeout=60)
        assert rank.returncode == 1
    assert "has not been renewed" in words


def test_a_process_is_forked_between_two_reads_and_not_in_the_midst_of_one(tmp_path: Path) -> None:
    pipe = tmp_path / LEASE
    os.mkfifo(pipe)
    with process(FORKS, str(pipe), 600) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "reading\n"
        assert select.select([rank.stdout], [], [], 0.3)[0] == []
        pipe.write_text("the read comes back")
        assert rank.stdout.read() == "the child went on\n"
        assert rank.wait() == 0


def test_a_lease_that_was_never_there_is_as_no_renewal(tmp_path: Path) -> None:
    with process(RANK_0, str(tmp_path / LEASE), 0.2) as rank:
        words, _ = rank.communicate(timeout=60)
        assert rank.returncode == 1
    assert str(tmp_path / LEASE) in words


def test_a_store_that_refuses_for_a_while_is_told_and_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / LEASE)
    told: list[dict[str, Any]] = []
    num_writes = 0

    def write_json(uri: str, document: Any) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes in (2, 3):
            raise storage.StorageError(uri, "cannot write: 503 Service Unavailable")
        write(uri, document)

    write = storage.write_json
    monkeypatch.setattr(storage, "write_json", write_json)
    monkeypatch.setattr(lease, "emit", lambda event, **fields: told.append({"event": event, **fields}))
    with lease.renewed(uri, 0.5):
        wait_for_renewal(uri, 1)
    assert len(told) == 2
    for event in told:
        assert (event["event"], event["status"], event["timeout_s"]) == ("lease", "not renewed", 0.5)
        assert event["message"] == f"{uri}: cannot write: 503 Service Unavailable"
        assert events.parse(json.dumps(event)) == event


def test_a_lease_that_cannot_be_written_at_all_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "attempt").write_text("")
    with pytest.raises(storage.StorageError, match="is a file"), lease.renewed(f"{tmp_path}/attempt/{LEASE}", 600):
        raise AssertionError("nothing runs without a lease")


def test_no_renewal_follows_the_end_of_the_block(tmp_path: Path) -> None:
    uri = str(tmp_path / LEASE)
    with lease.renewed(uri, 0.1):
        (keeper,) = [thread for thread in threading.enumerate() if thread.name == "lease"]
        wait_for_renewal(uri, 2)
    keeper.join(60)
    assert not keeper.is_alive()


def test_without_a_time_out_there_is_no_lease(tmp_path: Path) -> None:
    with lease.renewed(str(tmp_path / LEASE), None):
        assert list(tmp_path.iterdir()) == []
