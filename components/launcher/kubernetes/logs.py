"""The Master's log in the step's own, line by line as it is written."""

import threading
from collections.abc import Callable

from thaw.components import events
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.pytorchjob import CONTAINER

_LAST_LINES_S = 15
"""How long the end of a log may take to come once its container has ended."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class StreamedLog:
    """A pod's log, followed by a thread of its own through lost connections; each line comes once."""

    def __init__(self, api: Api, pod: str, on_line: Callable[[str], None]):
        self._api = api
        self._pod = pod
        self._on_line = on_line
        self._last_time: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"log-{pod}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Have the last lines of a container that has ended; return when they are there, or don't come."""
        self._ended.set()
        self._thread.join(_LAST_LINES_S)

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
                    events.emit("warning", message=f"the Master's log can't be shown here: {error}")
                    return
                # Whether pod, job and server are still there is for those to say who look at the job.
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if self._last_time == before else _FIRST_PAUSE_S
            self._ended.wait(pause_s)

    def _read(self, follow: bool) -> None:
        for time, line in self._api.log_lines(self._pod, CONTAINER, self._last_time, follow):
            # Asked for what came since a time, the server gives that whole second once more.
            if self._last_time is None or _instant(time) > _instant(self._last_time):
                self._last_time = time
                self._on_line(line)


def _instant(time: str) -> tuple[str, str]:
    """RFC 3339 times of one zone, with any number of decimals, in their order."""
    seconds, _, fraction = time.removesuffix("Z").partition(".")
    return seconds, fraction
