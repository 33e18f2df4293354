"""A launcher that is told to end has its job deleted, even where it gets no time to do so itself.

A step that is cancelled gets SIGTERM, and may be killed with its whole process group a moment later, before its DELETE
is out or answered. So a small process in a session of its own waits beside the launcher. The signal's number reaches it
through a pipe, written by the interpreter's signal handler in C, whatever the launcher is at. If the launcher does not
say soon that it has deleted the job, or is gone, the small process does it. A launcher that is killed without a signal
before closes the pipe without a number: then the job stays, for the launcher that takes it up.

The process runs `python -m thaw.components.launcher.kubernetes.cancel <namespace> <job>`.
"""

import os
import select
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
_WAIT_S = 2
"""How long the small process leaves the deletion to the launcher."""
_DELETE_S = 20
_DONE = b"+"


class Canceller:
    """While its block runs, SIGTERM and SIGINT raise Interrupted, and have the job deleted; for the main thread.

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

    def watch(self, uid: str, owner: str | None) -> None:
        """Say which job it is, and the uid of its owner. It is deleted only as long as it belongs to that one.

        Before that none is deleted, as another's may have its name.
        """
        self._say(f"{uid} {owner or ''}".encode())

    def done(self) -> None:
        """Say that the job is deleted."""
        self._say(_DONE)

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

    def _say(self, words: bytes) -> None:
        # The small process may have deleted the job already, or have been killed: the launcher can do without it.
        with suppress(BrokenPipeError):
            os.write(self._pipe, words)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            return
        self._interrupted = True
        end = threading.Timer(_END_S, os._exit, [128 + number])
        end.daemon = True
        end.start()
        raise Interrupted(number)


def _stand_by(namespace: str, job: str) -> None:
    """Delete the job if a signal's number comes, and after it no word that the launcher has done so."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    api = Api(namespace)
    told, waits_s = b"", None
    while select.select([sys.stdin], [], [], waits_s)[0]:
        # A write to a pipe of so few bytes comes whole.
        data = os.read(sys.stdin.fileno(), 4096)
        if _DONE in data or (not data and waits_s is None):
            return
        if not data:
            break
        told += data
        if any(number in data for number in _SIGNALS):
            waits_s = _WAIT_S
    uid, _, owner = bytes(byte for byte in told if byte >= ord(" ")).decode().partition(" ")
    if uid:
        try:
            api.delete_job(job, uid, _DELETE_S, owner or None)
        except ApiError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    _stand_by(*sys.argv[1:])
