"""How one process learns that another, of which it is a part, is gone, SIGKILL included.

A parent-death signal reaches the direct children alone, and not through the `sh` that kfp puts between its driver and a
step. So each process of a local run also knows the pid of the one that it must not outlive, in a variable.
"""

import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable

DRIVER_PID = "THAW_DRIVER_PID"
"""Variable with the pid that a step must not outlive: the process that runs the pipeline on this machine."""
LAUNCHER_PID = "THAW_LAUNCHER_PID"
"""Variable with the pid that every process of a job must not outlive: the step that launched it on this machine."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel send SIGKILL to this process when its parent (strictly: the thread that started it) ends.

    Args:
        parent: Pid of the parent; if it has ended already, this process ends here.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def when_gone(pid: int, then: Callable[[], None]) -> None:
    """Call `then`, in a thread of its own, as soon as a process is gone; at once if it is gone already.

    A forked child has no such thread.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        descriptor = None

    def wait() -> None:
        if descriptor is not None:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        then()

    threading.Thread(target=wait, name=f"lifeline-{pid}", daemon=True).start()
