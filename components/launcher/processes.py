"""No process outlives the command that started it, however that ends.

    thaw run                     kills its driver as it ends
      driver (kfp.local)         dies with thaw run: parent-death signal
        sh
          step                   watches the driver by pidfd, as no signal reaches through sh; ends its job's processes
            torchrun, a replica  dies with the step: parent-death signal
              rank               watches the step by pidfd
                loader worker    dies with its rank

While it lives, a step ends the processes of its job by the mark that they all inherit, LAUNCHER_PID: so also those
whose parent is gone.
"""

import functools
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from thaw.components.lifeline import DRIVER_PID, LAUNCHER_PID, die_with_parent, when_gone

__all__ = ["DRIVER_PID", "Interrupted", "die_with_parent", "end_with_driver", "none_left", "start"]

_END_S = 5
"""How long a process may take to end once it is killed, and a step once it is told to."""


class Interrupted(BaseException):
    """A signal asked this process to end.

    Attributes:
        leaves_open: Whether what was begun may still go on, or is done and only not recorded.
    """

    leaves_open = False

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def start(command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process of the job: marked, in a session of its own, its output in one pipe; it dies with this thread."""
    launcher = os.getpid()
    return subprocess.Popen(
        command,
        env={**env, LAUNCHER_PID: str(launcher)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(launcher),
    )


@contextmanager
def none_left() -> Iterator[None]:
    """However the block ends, every process that carries this process's mark is killed, and gone.

    In the block, SIGTERM and SIGINT raise Interrupted; so it is for the main thread. A signal that is ignored stays so:
    a shell starts its background jobs with SIGINT ignored.
    """
    previous = {
        number: handler
        for number in (signal.SIGTERM, signal.SIGINT)
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    interrupted = ending = False
    late: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            return
        if ending:
            # It must not cut the clean-up short, and is not lost: what follows the block gets it.
            late.append(number)
            return
        interrupted = True
        raise Interrupted(number)

    for caught in previous:
        signal.signal(caught, interrupt)
    try:
        yield
    finally:
        ending = True
        try:
            _end_marked()
        finally:
            for caught, handler in previous.items():
                signal.signal(caught, handler)
        for number in late:
            signal.raise_signal(number)


@functools.cache
def end_with_driver() -> None:
    """Have this process, a step, end when the process that DRIVER_PID names is gone; without that variable, nothing."""
    if driver := os.environ.get(DRIVER_PID):
        when_gone(int(driver), _end)


def _end() -> None:
    """End this process by SIGTERM to its main thread, so that its clean-up runs; by force if that does not help."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(_END_S)
    _end_marked()
    os._exit(1)


def _end_marked() -> None:
    end = time.monotonic() + _END_S
    # Again and again, as a process may have started another just before its end.
    while processes := _marked():
        gone = select.poll()
        descriptors = []
        for process in processes:
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                descriptors.append(os.pidfd_open(process.pid))
                gone.register(descriptors[-1], select.POLLIN)
                process.kill()
        if descriptors:
            gone.poll(1000 * _END_S)
        for descriptor in descriptors:
            os.close(descriptor)
        if time.monotonic() > end:
            raise RuntimeError(f"processes {[process.pid for process in processes]} don't end on SIGKILL")


def _marked() -> list[psutil.Process]:
    """The processes of this one's job. A dead one, not yet reaped, has no environment and isn't among them."""
    mark = str(os.getpid())
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(LAUNCHER_PID) == mark:
                found.append(process)
    return found
