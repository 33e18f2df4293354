"""A whole tree, as a run on this machine has it: driver, sh, step, two torchrun agents, ranks, loader workers."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from launcher_jobs import manifest_of

# Each process reports under a name, into a pipe that the test reads.
REPORT = """
import os, signal, subprocess, sys
def report(name, pid):
    pipe = os.open(os.environ["REPORTS"], os.O_WRONLY)
    os.write(pipe, f"{name} {pid}\\n".encode())
    os.close(pipe)
"""
DRIVER = """
import os, subprocess, sys
os.environ["THAW_DRIVER_PID"] = str(os.getpid())
sys.exit(subprocess.run(["sh", "-c", f"{sys.executable} {sys.argv[1]}; exit $?"]).returncode)
"""
STEP = f"""{REPORT}
import json
from thaw.components.launcher import local
report("sh", os.getppid())
report("step", os.getpid())
local.run(json.load(open(os.environ["MANIFEST"])), os.environ["LOGS"], print)
"""
RANK = f"""{REPORT}
from thaw.components.lifeline import LAUNCHER_PID, when_gone
when_gone(int(os.environ[LAUNCHER_PID]), lambda: os._exit(1))
rank = os.environ["RANK"]
worker = subprocess.Popen([sys.executable, os.environ["WORKER"]])
report(f"agent-{{rank}}", os.getppid())
report(f"rank-{{rank}}", os.getpid())
"""
WAITING_RANK = f"{RANK}signal.pause()"
GLOO_RANK = f"""{RANK}
import torch.distributed as dist
dist.init_process_group("gloo")
if rank == "1":
    def enough(*_):
        raise ValueError("rank 1 has had enough")
    signal.signal(signal.SIGUSR1, enough)
    report("in-mid-epoch", os.getpid())
    signal.pause()
dist.barrier()
"""
WORKER = f"""{REPORT}
from thaw.components.lifeline import die_with_parent
die_with_parent()
report("worker-" + os.environ["RANK"], os.getpid())
signal.pause()
"""
REPORTED = {"sh", "step", *(f"{what}-{rank}" for what in ("agent", "rank", "worker") for rank in "01")}
GONE_WITHIN_S = 60


class Tree:
    """The processes, each by its name: pid, and a pidfd from when it lived."""

    def __init__(self, folder: Path, rank: str, reported: set[str]):
        os.mkfifo(folder / "reports")
        reports = os.open(folder / "reports", os.O_RDWR)
        for name, source in (("driver", DRIVER), ("step", STEP), ("rank", rank), ("worker", WORKER)):
            (folder / f"{name}.py").write_text(source)
        manifest = manifest_of(["torchrun", str(folder / "rank.py")], "cluster.deadline_s=120")
        (folder / "manifest.json").write_text(json.dumps(manifest))
        self.driver = subprocess.Popen(
            [sys.executable, str(folder / "driver.py"), str(folder / "step.py")],
            env={
                **os.environ,
                "REPORTS": str(folder / "reports"),
                "MANIFEST": str(folder / "manifest.json"),
                "LOGS": str(folder / "logs"),
                "WORKER": str(folder / "worker.py"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.pids = {"driver": self.driver.pid}
        told = b""  # read without a buffer, which select would not see
        while not self.pids.keys() >= reported:
            assert select.select([reports], [], [], 60)[0], f"only {sorted(self.pids)} started"
            *lines, told = (told + os.read(reports, 1 << 12)).split(b"\n")
            for name, pid in map(bytes.split, lines):
                self.pids[name.decode()] = int(pid)
        os.close(reports)
        self.pidfds = {name: os.pidfd_open(pid) for name, pid in self.pids.items()}

    def living(self, timeout_s: float) -> set[str]:
        """Who still lives after a time; at once, when none does."""
        end = time.monotonic() + timeout_s
        left = dict(self.pidfds)
        while left:
            dead, _, _ = select.select(left.values(), [], [], max(0, end - time.monotonic()))
            if not dead:
                break
            left = {name: pidfd for name, pidfd in left.items() if pidfd not in dead}
        return set(left)

    def close(self) -> None:
        """Leaves nothing behind, whatever the test found."""
        for name in self.living(0):
            signal.pidfd_send_signal(self.pidfds[name], signal.SIGKILL)
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        self.driver.communicate()


@pytest.fixture
def grow(tmp_path: Path) -> Iterator[Callable[..., Tree]]:
    """Starts a tree, once a test."""
    trees = []

    def start(rank: str, reported: set[str]) -> Tree:
        trees.append(Tree(tmp_path, rank, reported))
        assert trees[0].living(0) == set(trees[0].pids)
        return trees[0]

    yield start
    for tree in trees:
        tree.close()


# https://github.com/kubeflow/pipelines/issues/677
@pytest.mark.parametrize(
    ("name", "number"),
    [("driver", signal.SIGKILL), ("step", signal.SIGKILL), ("step", signal.SIGTERM)],
    ids=["driver-SIGKILL", "step-SIGKILL", "step-SIGTERM"],
)
def test_no_process_outlives_the_command(grow: Callable[..., Tree], name: str, number: int) -> None:
    tree = grow(WAITING_RANK, REPORTED)
    os.kill(tree.pids[name], number)
    assert tree.living(GONE_WITHIN_S) == set()
    assert tree.driver.wait() != 0


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (signal.SIGKILL, "was killed by signal 9, SIGKILL (the kernel does that where memory runs out)"),
        (signal.SIGUSR1, "ended with exit code 1: ValueError: rank 1 has had enough"),
    ],
    ids=["killed", "raised"],
)
def test_one_rank_that_dies_ends_all_and_is_named_on_the_last_line(
    grow: Callable[..., Tree], number: int, cause: str
) -> None:
    tree = grow(GLOO_RANK, REPORTED | {"in-mid-epoch"})
    os.kill(tree.pids["rank-1"], number)
    assert tree.living(GONE_WITHIN_S) == set()
    output = tree.driver.stdout.read()  # type: ignore[union-attr]
    assert output.splitlines()[-1] == f"rank 1 (worker-0) {cause}", output
    assert tree.driver.wait() != 0
