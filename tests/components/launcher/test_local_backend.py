import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import manifest_of

from thaw.components import storage
from thaw.components.launcher import local, processes
from thaw.components.launcher.failure import JobFailed

Script = Callable[..., list[str]]


def run(manifest: dict[str, Any], log_uri: str | Path) -> list[str]:
    """Runs a job; gives the Master's lines."""
    lines: list[str] = []
    local.run(manifest, str(log_uri), lines.append)
    return lines


def test_each_replica_runs_the_command_in_the_operators_environment(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_RDZV_BACKEND", "c10d")
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("INHERITED", "yes")
    command = script("import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], sys.executable]))", "a b")
    manifest = manifest_of(command, "training.num_nodes=3", "cluster.env={GIVEN: 'it is'}")
    (line,) = run(manifest, tmp_path / "logs")
    found = [
        json.loads((tmp_path / "logs" / f"{name}.log").read_text()) for name in ("master-0", "worker-0", "worker-1")
    ]
    assert found[0] == json.loads(line)
    ports = {environment["MASTER_PORT"] for environment, _, _ in found}
    assert len(ports) == 1
    for node_rank, (environment, arguments, executable) in enumerate(found):
        assert arguments == ["a b"]
        assert Path(executable).parent == Path(sys.executable).parent
        injected = {
            "PYTHONUNBUFFERED": "1",
            "PET_NPROC_PER_NODE": "1",
            "PET_NNODES": "3",
            "MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": environment["MASTER_PORT"],
            "WORLD_SIZE": "3",
            "RANK": str(node_rank),
            "PET_NODE_RANK": str(node_rank),
        }
        own = {"GIVEN": "it is", "OMP_NUM_THREADS": "1", "INHERITED": "yes", "THAW_LAUNCHER_PID": str(os.getpid())}
        assert (injected | own).items() <= environment.items()
        assert {name for name in environment if name.startswith("PET_")} == {n for n in injected if n[:4] == "PET_"} | {
            "PET_MASTER_PORT"
        }


def test_lines_of_the_master_arrive_while_it_runs(script: Script, tmp_path: Path) -> None:
    """The Master ends only after its line has come here; with lines held back, the deadline would end it."""
    go = tmp_path / "go"
    os.mkfifo(go)
    command = script("import sys; print('ready', flush=True); print('then', open(sys.argv[1]).read(), end='')", str(go))
    lines = []

    def answer(line: str) -> None:
        lines.append(line)
        if line == "ready":
            go.write_text("went on")

    manifest = manifest_of(command, "training.num_nodes=1", "cluster.deadline_s=20")
    local.run(manifest, str(tmp_path / "logs"), answer)
    assert lines == ["ready", "then went on"]
    assert (tmp_path / "logs" / "master-0.log").read_text() == "ready\nthen went on"


def test_a_failed_replica_ends_the_others_at_once(script: Script, tmp_path: Path) -> None:
    source = """
import os, signal, sys
if os.environ["RANK"] == "1":
    sys.exit("ValueError: enough")
print("waiting", flush=True)
signal.pause()
"""
    manifest = manifest_of(script(source), "training.num_nodes=3", "cluster.deadline_s=60")
    with pytest.raises(JobFailed) as failure:
        run(manifest, tmp_path / "logs")
    assert (failure.value.replica, failure.value.exit_code) == ("worker-0", 1)
    assert str(failure.value).splitlines()[-1] == "worker-0 ended with exit code 1: ValueError: enough"
    assert f"{tmp_path}/logs/worker-0.log" in str(failure.value)


def test_a_job_that_is_not_done_by_its_deadline_is_ended(script: Script, tmp_path: Path) -> None:
    manifest = manifest_of(
        script("import signal; print('at work', flush=True); signal.pause()"), "cluster.deadline_s=1"
    )
    with pytest.raises(
        JobFailed, match=r"(?s)    at work\nit was not done after 1 s \(cluster\.deadline_s\)"
    ) as failure:
        run(manifest, tmp_path / "logs")
    assert failure.value.replica is None


def test_what_a_job_leaves_running_is_ended_with_it(script: Script, tmp_path: Path) -> None:
    source = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True).pid)
"""
    left: list[int] = []
    manifest = manifest_of(script(source), "training.num_nodes=1")
    local.run(manifest, str(tmp_path / "logs"), lambda line: left.append(os.pidfd_open(int(line))))
    assert select.select(left, [], [], 0)[0] == left  # A pidfd can be read when its process is dead.


def test_a_signal_to_the_launcher_ends_the_job_and_names_itself(script: Script, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    manifest = manifest_of(
        script("import signal; print('at work', flush=True); signal.pause()"), "cluster.deadline_s=60"
    )
    with pytest.raises(JobFailed, match="its launcher was told to end by SIGTERM"):
        local.run(manifest, str(tmp_path / "logs"), lambda line: signal.raise_signal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_during_the_clean_up_waits_for_its_end_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []

    def clean_up() -> None:
        signal.raise_signal(signal.SIGTERM)
        got.append("cleaned up")

    monkeypatch.setattr(processes, "_end_marked", clean_up)
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append("SIGTERM"))
    try:
        with processes.none_left():
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == ["cleaned up", "SIGTERM"]


# https://github.com/pytorch/pytorch/issues/73320
def test_a_given_port_that_is_in_use_is_an_error_with_the_number(script: Script, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        manifest = manifest_of(script("raise SystemExit('must not start')"), f"cluster.master_port={port}")
        with pytest.raises(ValueError, match=rf"port {port} .*in use"):
            run(manifest, tmp_path / "logs")


def test_two_jobs_do_not_share_a_given_port(script: Script, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = script("import os; print(os.environ['MASTER_PORT'])")
    manifest = manifest_of(command, f"cluster.master_port={port}", "training.num_nodes=1")
    with local._reserved_port(port), pytest.raises(ValueError, match=f"port {port} "):
        run(manifest, tmp_path / "first")
    assert run(manifest, tmp_path / "second") == [str(port)]


def test_a_reserved_port_is_no_one_elses_and_can_still_be_listened_on() -> None:
    with local._reserved_port(None) as port, socket.create_server(("127.0.0.1", port)):
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            socket.socket().bind(("127.0.0.1", port))
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_program_that_is_nowhere_on_the_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'no-such-program' of the job is not found on PATH"):
        run(manifest_of(["no-such-program"]), tmp_path / "logs")


def test_logs_reach_a_remote_folder_also_of_a_job_that_failed(script: Script) -> None:
    log_uri = f"memory://{uuid.uuid4().hex}/logs"
    manifest = manifest_of(script("print('a line'); raise SystemExit(3)"), "training.num_nodes=1")
    with pytest.raises(JobFailed) as failure:
        run(manifest, log_uri)
    assert storage.read_bytes(f"{log_uri}/master-0.log") == b"a line\n"
    assert f"{log_uri}/master-0.log" in str(failure.value)


def test_gpus_are_dealt_out_and_too_few_are_an_error(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = script("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
    manifest = manifest_of(command, "training.device=cuda", "training.nproc_per_node=2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5,6,7")
    run(manifest, tmp_path / "logs")
    assert (tmp_path / "logs/master-0.log").read_text() == "3,4\n"
    assert (tmp_path / "logs/worker-0.log").read_text() == "5,6\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5")
    with pytest.raises(ValueError, match="needs 4 GPUs, and this machine shows 3"):
        run(manifest, tmp_path / "again")


def test_a_log_that_cannot_be_written_ends_the_job_with_place_and_reason(script: Script, tmp_path: Path) -> None:
    command = script("import signal; print('x' * 20000, flush=True); signal.pause()")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, hard))  # A disk with room for half a line.
    try:
        with pytest.raises(storage.StorageError, match=rf"{tmp_path}/logs/master-0\.log: cannot write: File too large"):
            run(manifest_of(command, "training.num_nodes=1"), tmp_path / "logs")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "logs/master-0.log").stat().st_size == 10000
