"""The lease on a job: a file that its launcher renews, and without whose renewal the job ends itself.

A launcher that is killed cannot delete its job, and the job's pods know nothing of Kubernetes. So the launcher rewrites
one object beside the job's other files, and rank 0 looks whether that still happens. No clock is compared with another
machine's: what counts is whether the content changes, by rank 0's own clock. A store that rank 0 cannot read is as a
launcher that does not write: the content does not change.
"""

import datetime
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pydantic import AwareDatetime

from thaw.components import storage
from thaw.components.config.section import Section
from thaw.components.events import emit

LEASE = "lease.json"
"""Name of the lease, in the folder of the attempt."""

LOOKS = 5
"""The lease is renewed so many times in its time-out, and looked at as often."""

_LAST_RENEWAL_S = 2
"""How long the end of a launcher's work waits for a renewal that is under way."""
_FORK_S = 10
"""How long a fork waits for a read that is under way."""

_reading = threading.Lock()


class Lease(Section):
    """What the file says. Readers on other machines may take it as a sign of life, rank 0 only as a content."""

    holder: str
    """The launcher: host, pid, and what tells it from another with the same."""
    renewal: int
    """Counted from 0, for this holder."""
    renewed_at: AwareDatetime
    """By the launcher's clock, UTC."""
    timeout_s: float
    """Without a renewal for so long, the job ends itself."""


class LeaseLostError(RuntimeError):
    """Nobody renews the lease: whoever launched the job is gone, or cannot reach the store."""

    def __init__(self, uri: str, timeout_s: float):
        super().__init__(
            f"the lease {uri} has not been renewed for {timeout_s:g} s (cluster.lease_timeout_s): the step that "
            f"launched this job is gone or cannot write there, so the job ends itself"
        )


@contextmanager
def renewed(uri: str, timeout_s: float | None) -> Iterator[None]:
    """While the block runs, the lease at `uri` is renewed. With None for a time-out there is no lease.

    A renewal that fails is told as an event, and tried again at the next one's time.

    Raises:
        StorageError: the first one cannot be written.
    """
    if timeout_s is None:
        yield
        return
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"

    def renew(renewal: int) -> None:
        now = datetime.datetime.now(datetime.UTC)
        lease = Lease(holder=holder, renewal=renewal, renewed_at=now, timeout_s=timeout_s)
        storage.write_json(uri, lease.model_dump(mode="json"))

    ended = threading.Event()

    def keep() -> None:
        renewal, last_s = 1, time.monotonic()
        while not ended.wait(timeout_s / LOOKS):
            try:
                renew(renewal)
            except OSError as error:
                since_s = round(time.monotonic() - last_s, 1)
                emit("lease", status="not renewed", since_s=since_s, timeout_s=timeout_s, message=str(error))
            else:
                renewal, last_s = renewal + 1, time.monotonic()

    renew(0)
    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join(_LAST_RENEWAL_S)


def watch(uri: str, timeout_s: float, lost: Callable[[LeaseLostError], None]) -> None:
    """Have `lost` called, in a thread of its own, once the content at `uri` has not changed for `timeout_s`.

    Reading and waiting are two threads, so that a read that does not come back holds nothing up.

    No fork happens in the midst of a read: a forked process, as a loader's worker, would inherit what the network's
    libraries have locked just then, and never see it unlocked.
    """
    changed = threading.Event()
    held: list[bool] = []

    def before_fork() -> None:
        held.append(_reading.acquire(timeout=_FORK_S))

    def after_fork() -> None:
        if held.pop():
            _reading.release()

    os.register_at_fork(before=before_fork, after_in_parent=after_fork, after_in_child=after_fork)

    def read() -> None:
        content: bytes | None = None
        while True:
            with suppress(OSError), _reading:
                found = storage.read_bytes(uri)
                if found != content:
                    content = found
                    changed.set()
            time.sleep(timeout_s / LOOKS)

    def wait() -> None:
        while changed.wait(timeout_s):
            changed.clear()
        lost(LeaseLostError(uri, timeout_s))

    for part in (read, wait):
        threading.Thread(target=part, name=f"lease-{part.__name__}", daemon=True).start()
