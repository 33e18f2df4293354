"""The backend `local`: runs a PyTorchJob on this machine, one process a replica, from the manifest alone.

Each replica's command gets exactly the environment that the training operator injects, the Master's address and port
excepted, and finds the interpreter that runs this first on its PATH. Image, volumes, cpu and memory are the cluster's
matter.
"""

import errno
import os
import selectors
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from thaw.components import storage
from thaw.components.launcher import processes, pytorchjob
from thaw.components.launcher.failure import JobFailed, ReplicaEnd, job_failed, last_lines, root_cause
from thaw.components.storage.errors import reporting
from thaw.components.storage.filesystem import is_local

MASTER_ADDR = "127.0.0.1"

_NUM_KEPT_LINES = 400
_AFTER_FAILURE_S = 0.5
"""How long the others may go on, for their last lines, once the cause is known."""
_UNTIL_CAUSE_S = 10
"""How long the others may go on while all that failed only noticed the failure of another."""
_AFTER_MASTER_S = 30
"""How long Workers may go on after the Master has succeeded, which makes the job succeed."""

_NOT_INHERITED = ("PET_", "TORCHELASTIC_")
"""Variables that torchrun reads. No pod has more of them than the operator gives it."""


def run(manifest: Mapping[str, Any], log_uri: str, on_line: Callable[[str], None]) -> None:
    """Run a PyTorchJob, and return when it has succeeded. No process of it is left, however this ends.

    To be called from the main thread, as it acts on SIGTERM and SIGINT; one job at a time in a process.

    Args:
        manifest: The PyTorchJob.
        log_uri: Folder for the logs, `<replica>.log` each.
        on_line: Called with each line of the Master's log, as it comes.

    Raises:
        ValueError: the job can't start here: a command is not found, a port is in use, too few GPUs.
        JobFailed: a replica failed, the deadline passed, or a signal ended it.
        StorageError: a log can't be written.
    """
    processes.end_with_driver()
    job = manifest["metadata"]["name"]
    with ExitStack() as stack:
        port = stack.enter_context(_reserved_port(pytorchjob.given_master_port(manifest)))
        pods = pytorchjob.pods(manifest, MASTER_ADDR, port)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thaw-", ignore_cleanup_errors=True)))
        environments = _environments(pods, scratch)
        commands = [_found(pod.command, env["PATH"]) for pod, env in zip(pods, environments)]
        folder = stack.enter_context(_log_folder(log_uri))
        log_uris = {pod.replica: storage.join(log_uri, f"{pod.replica}.log") for pod in pods}
        replicas: list[_Replica] = []
        try:
            with processes.none_left():
                for pod, command, env in zip(pods, commands, environments):
                    replica = _Replica(pod.replica, command, env, folder, on_line if not replicas else None)
                    stack.callback(replica.close)
                    replicas.append(replica)
                ended = _follow(replicas, pytorchjob.deadline_s(manifest))
        except processes.Interrupted as signal:
            raise JobFailed(job, f"its launcher was told to end by {signal}", hint="start a new run") from None
        finally:
            for replica in replicas:
                replica.read_all()
        failed = [replica.end() for replica in ended if replica.exit_code]
        if failed:
            raise job_failed(job, failed, log_uris)
        if replicas[0] not in ended:
            master = replicas[0]
            raise JobFailed(
                job,
                f"it was not done after {pytorchjob.deadline_s(manifest)} s (cluster.deadline_s), and was ended",
                last_lines=last_lines(master.lines),
                log_uri=log_uris[master.name],
                hint="see in the log how far it came, and raise cluster.deadline_s if it needs longer",
            )


class _Replica:
    """The process that stands for a pod, and its log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        on_line: Callable[[str], None] | None,
    ):
        self.name = name
        self.lines: deque[str] = deque(maxlen=_NUM_KEPT_LINES)
        self.exit_code: int | None = None
        self._on_line = on_line
        self._unfinished = b""
        self._log = (folder / f"{name}.log").open("xb", buffering=0)
        self._process = processes.start(command, env)
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()
        os.set_blocking(self.output, False)
        self.pidfd = os.pidfd_open(self._process.pid)

    def read(self) -> bool:
        """Take what the replica has written, at most one pipe full; False when there is nothing more now, or ever."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return False
        with reporting(str(self._log.name), "write"):
            left = memoryview(data)
            while left:
                left = left[self._log.write(left) :]
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if not data and self._unfinished:
            lines, self._unfinished = [self._unfinished], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            self.lines.append(text)
            if self._on_line:
                self._on_line(text)
        return bool(data)

    def read_all(self) -> None:
        """Take all that the replica has written so far."""
        while self.read():
            pass

    def reap(self) -> int:
        """The exit code of the process, which has ended."""
        self.exit_code = self._process.wait()
        self.read_all()
        return self.exit_code

    def end(self) -> ReplicaEnd:
        """How it ended."""
        assert self.exit_code is not None
        return ReplicaEnd(self.name, self.exit_code, list(self.lines))

    def close(self) -> None:
        """Give back what it holds. The process is dead."""
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        os.close(self.pidfd)
        self._log.close()


def _follow(replicas: Sequence[_Replica], deadline_s: float) -> list[_Replica]:
    """Read the logs until all have ended, or there is reason to wait no longer; who ended by itself, in that order."""
    until = time.monotonic() + deadline_s
    ended: list[_Replica] = []
    with selectors.DefaultSelector() as selector:
        for replica in replicas:
            selector.register(replica.output, selectors.EVENT_READ, replica)
            selector.register(replica.pidfd, selectors.EVENT_READ, replica)
        while len(ended) < len(replicas) and (left_s := until - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                replica = key.data
                if key.fd == replica.output:
                    if not replica.read():
                        # The end of the pipe; or what was there has just been read at the process's end.
                        selector.unregister(replica.output)
                    continue
                selector.unregister(replica.pidfd)
                exit_code = replica.reap()
                ended.append(replica)
                if exit_code:
                    failed = [each.end() for each in ended if each.exit_code]
                    grace_s = _UNTIL_CAUSE_S if root_cause(failed).only_noticed else _AFTER_FAILURE_S
                    until = min(until, time.monotonic() + grace_s)
                elif replica is replicas[0]:
                    until = min(until, time.monotonic() + _AFTER_MASTER_S)
    return ended


@contextmanager
def _reserved_port(given: int | None) -> Iterator[int]:
    """A port of this machine that nobody else gets while the block runs.

    A socket that is bound and doesn't listen keeps the port from every process that asks for a free one, and from
    outgoing connections; with SO_REUSEADDR on both sides the Master's store can still listen on it (tried with the
    TCPStore of torch 2.13, which sets it). Two jobs that are given the same port are told apart by a lock.
    """
    with socket.socket(socket.AF_INET) as reservation, socket.socket(socket.AF_UNIX) as lock:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reservation.bind(("", given or 0))
            port: int = reservation.getsockname()[1]
            lock.bind(f"\0thaw-port-{port}")
        except OSError as error:
            if given is None or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise ValueError(
                f"port {given} (cluster.master_port) can't be had on this machine: {os.strerror(error.errno)}; "
                f"name another, or none: then a free one is taken"
            ) from None
        yield port


@contextmanager
def _log_folder(log_uri: str) -> Iterator[Path]:
    """A folder on this machine for the logs, which are at `log_uri` when the block has ended."""
    filesystem, path = storage.open_filesystem(log_uri)
    if is_local(filesystem):
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="thaw-logs-") as folder:
        try:
            yield Path(folder)
        except BaseException as error:
            try:
                storage.upload_tree(folder, log_uri)
            except storage.StorageError as refusal:
                error.add_note(f"The logs could not be saved: {refusal}")
            raise
        storage.upload_tree(folder, log_uri)


def _environments(pods: Sequence[pytorchjob.Pod], scratch: Path) -> list[dict[str, str]]:
    """The whole environment of each pod's process: this one's, the pod's, its share of the GPUs, a /tmp of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
    gpus = iter(_gpus(sum(pod.num_gpus for pod in pods)))
    environments = []
    for pod in pods:
        env = inherited | pod.env
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        env["TMPDIR"] = str(scratch / pod.replica)
        (scratch / pod.replica).mkdir()
        if pod.num_gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(next(gpus) for _ in range(pod.num_gpus))
        environments.append(env)
    return environments


def _gpus(num_needed: int) -> list[str]:
    """GPUs of this machine, as CUDA_VISIBLE_DEVICES names them."""
    if not num_needed:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = [str(index) for index, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    else:
        gpus = [gpu for gpu in visible.split(",") if gpu]
    if len(gpus) < num_needed:
        raise ValueError(
            f"the job needs {num_needed} GPUs, and this machine shows {len(gpus)}; "
            f"lower training.num_nodes or training.nproc_per_node, or set training.device to cpu"
        )
    return gpus


def _found(command: Sequence[str], path: str) -> list[str]:
    """The command, its program found on the PATH."""
    program = shutil.which(command[0], path=path)
    if program is None:
        raise ValueError(f"command {command[0]!r} of the job is not found on PATH {path}")
    return [program, *command[1:]]
