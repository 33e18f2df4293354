"""A launcher that is told to end has its job deleted, even where it gets no time to do so itself.

A step that is cancelled gets SIGTERM, and may be killed with its whole process group a moment later. So a small process
in a session of its own waits beside the launcher, its connection ready. The signal's number reaches it through a pipe,
written by the interpreter's signal handler in C, whatever the launcher is at. A launcher that is killed without a word
closes the pipe without a number: then the job stays, for the launcher that takes it up.

The process runs `python -m thaw.components.launcher.kubernetes.cancel <namespace> <job>`.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType

from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.processes import Interrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_END_S = 8
"""How long this process may take to end once it is told to; then it is made to."""
_DELETE_S = 5


class Canceller:
    """While its block runs, SIGTERM and SIGINT have the job deleted, and raise Interrupted; for the main thread.

    A signal that is ignored stays so: a shell starts its background jobs with SIGINT ignored.
    """

    def __init__(self, namespace: str, job: str):
        reads, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        command = [sys.executable, "-m", __name__, namespace, job]
        self._child = subprocess.Popen(command, stdin=reads, start_new_session=True)
        os.close(reads)
        self._interrupted = False

    def __enter__(self) -> "Canceller":
        self._previous_pipe = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        self._previous = {
            number: signal.signal(number, self._interrupt)
            for number in _SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        return self

    def watch(self, uid: str) -> None:
        """Say which job it is. Before that none is deleted, as another's may have its name."""
        os.write(self._pipe, uid.encode())

    def deleted(self) -> bool:
        """After a signal: whether the job is deleted, as far as can be told in time."""
        with suppress(subprocess.TimeoutExpired):
            return self._child.wait(_DELETE_S) == 0
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_pipe)
        os.close(self._pipe)
        if not self._interrupted:
            self._child.kill()
            self._child.wait()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        end = threading.Timer(_END_S, os._exit, [128 + number])
        end.daemon = True
        end.start()
        raise Interrupted(number)


def _delete_when_told(namespace: str, job: str) -> int:
    """0 when the job is deleted, or the launcher is gone without a signal."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    api = Api(namespace)
    told = b""
    # A write to a pipe of so few bytes comes whole.
    while data := os.read(sys.stdin.fileno(), 4096):
        told += data
        if any(number in data for number in _SIGNALS):
            uid = bytes(byte for byte in told if byte >= ord(" ")).decode()
            if not uid:
                return 1
            try:
                api.delete_job(job, uid, _DELETE_S)
            except ApiError as error:
                print(error, file=sys.stderr)
                return 1
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(_delete_when_told(*sys.argv[1:]))
