"""The logs of a job's replicas while it runs: the Master's in the step's own, and of each the end, kept.

When one replica fails, the operator deletes those that still run, and their logs with them. One of them may be the one
that failed first, and only was not seen to.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from thaw.components import events
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.kubernetes.pods import Replica
from thaw.components.launcher.pytorchjob import CONTAINER

NUM_KEPT_LINES = 400
MAX_LOGS = 32
"""Of a larger job, the logs of the other replicas are left where they are."""

_MASTER = "master-0"
_LAST_LINES_S = 15
"""How long the ends of the logs may take to come once the containers have ended."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Streams:
    """The logs of one job, each followed from when its container starts."""

    def __init__(self, api: Api, on_line: Callable[[str], None]):
        self._api = api
        self._on_line = on_line
        self._logs: dict[str, StreamedLog] = {}

    def follow(self, replicas: Sequence[Replica]) -> None:
        """Follow the logs of those that have started. The Master's lines are given out as they come."""
        for replica in replicas:
            if replica.started and replica.name not in self._logs and len(self._logs) < MAX_LOGS:
                on_line = self._on_line if replica.name == _MASTER else None
                self._logs[replica.name] = StreamedLog(self._api, replica.pod, on_line)

    def finish(self) -> dict[str, list[str]]:
        """The end of each log, by replica, once all has come or does not come any more."""
        until = time.monotonic() + _LAST_LINES_S
        for log in self._logs.values():
            log.end()
        return {name: log.last_lines(max(0, until - time.monotonic())) for name, log in self._logs.items()}


class StreamedLog:
    """A container's log, followed by a thread of its own through lost connections; each line comes once."""

    def __init__(self, api: Api, pod: str, on_line: Callable[[str], None] | None = None):
        self._api = api
        self._pod = pod
        self._on_line = on_line
        self._kept: deque[str] = deque(maxlen=NUM_KEPT_LINES)
        self._last_time: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log-{pod}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask for what is there now, and then for nothing more."""
        self._ended.set()

    def last_lines(self, timeout_s: float) -> list[str]:
        """The end of the log; to be called after `end`."""
        self._thread.join(timeout_s)
        return list(self._kept)

    def _follow(self) -> None:
        pause_s = _FIRST_PAUSE_S
        ended = False
        while not ended:
            # Seen before the read: all that the container wrote is then in what the read gives.
            ended = self._ended.is_set()
            before = self._last_time
            try:
                self._read(follow=not ended)
            except ApiError as error:
                if error.status == 403:
                    if self._on_line:
                        events.emit("warning", message=f"the Master's log can't be shown here: {error}")
                    return
                # Whether pod, job and server are still there is for those to say who look at the job.
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if self._last_time == before else _FIRST_PAUSE_S
            self._ended.wait(pause_s)

    def _read(self, follow: bool) -> None:
        is_new = self._last_time is None
        for written_at, text in self._api.log_lines(self._pod, CONTAINER, self._last_time, follow):
            if written_at:
                # Asked for what came since a time, the server gives that whole second once more. All that comes after
                # it is new, though the node's clock be set back.
                is_new = is_new or _instant(written_at) > _instant(str(self._last_time))
                self._last_time = written_at if is_new else self._last_time
            if is_new:
                self._kept.append(text)
                if self._on_line:
                    self._on_line(text)


def _instant(written_at: str) -> tuple[str, str]:
    """RFC 3339 times of one zone, with any number of decimals, in their order."""
    seconds, _, fraction = written_at.removesuffix("Z").partition(".")
    return seconds, fraction
