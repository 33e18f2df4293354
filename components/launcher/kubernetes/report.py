"""What a job that failed leaves behind: the ends of its replicas' logs, saved and shown, and why, in few lines."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thaw.components import events, storage
from thaw.components.launcher.failure import (
    JobFailed,
    ReplicaEnd,
    job_failed,
    last_lines,
    root_cause,
    tells_failure,
)
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.kubernetes.logs import MAX_LOGS, NUM_KEPT_LINES
from thaw.components.launcher.kubernetes.pods import Replica
from thaw.components.launcher.kubernetes.watchdog import Verdict
from thaw.components.launcher.pytorchjob import CONTAINER, JobState

_NUM_EVENTS = 3
_PATIENCE_S = 20.0
"""For each of these questions. The failure is told, whether they are answered or not."""
_ALL_S = 60.0
"""For all of them."""


def save_log(log_uri: str, name: str, lines: Sequence[str]) -> str | None:
    """Write a replica's log into the folder; its URI, or None where the store refuses it."""
    uri = storage.join(log_uri, f"{name}.log")
    try:
        storage.write_bytes(uri, "".join(f"{line}\n" for line in lines).encode())
    except storage.StorageError as error:
        events.emit("warning", message=f"the log of {name} is not saved: {error}")
        return None
    return uri


class Remains:
    """The replicas of a job that has ended, or is about to be."""

    def __init__(
        self,
        api: Api,
        job: str,
        replicas: Sequence[Replica],
        log_uri: str,
        streamed: Mapping[str, list[str]],
        clock: Callable[[], float] = time.monotonic,
    ):
        """Save the ends of the logs of all replicas that failed, or where none did, of all that ran.

        Args:
            api: Where the job is.
            job: Its name.
            replicas: Those that have a pod.
            log_uri: Folder for the logs, `<replica>.log` each.
            streamed: What was seen of the logs while the job ran, by replica.
            clock: Seconds that only grow.
        """
        self._clock = clock
        self._until = clock() + _ALL_S
        self._api = api
        self._job = job
        self._replicas = replicas
        self._log_uri = log_uri
        self._streamed = streamed
        self._log_uris: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}
        failed = sorted(filter(lambda replica: replica.failed, replicas), key=lambda replica: replica.ended_at)
        for replica in (failed or [replica for replica in replicas if replica.started])[:MAX_LOGS]:
            self._save(replica.name, self._tail(replica))
        self._ends = [
            ReplicaEnd(replica.name, replica.exit_code, self._lines.get(replica.name, ()), replica.reason)
            for replica in failed
        ]
        if failed and root_cause(self._ends).only_noticed:
            self._add_silent_failures()

    def show(self, on_line: Callable[[str], None]) -> None:
        """Give out the last lines of each, those of the Master's excepted if they were given out before."""
        for name, lines in self._lines.items():
            if name != "master-0" or name not in self._streamed:
                for line in last_lines(lines):
                    on_line(f"[{name}] {line}")

    def add_deleted(self, names: Sequence[str]) -> None:
        """Say that the pods of these replicas were deleted before any other failed."""
        for name in names:
            if name not in self._lines and name in self._streamed:
                self._save(name, self._streamed[name])
            self._ends.append(ReplicaEnd(name, None, self._lines.get(name, ()), "its pod was deleted"))

    def failed(self, state: JobState, fate: str, had_ended: bool) -> JobFailed:
        """The error of a job that the operator calls failed."""
        if not self._ends:
            cause = f"no replica is left that shows why; {state.last_condition}"
            return JobFailed(self._job, cause, fate=fate, had_ended=had_ended)
        return job_failed(self._job, self._ends, self._log_uris, fate=fate, had_ended=had_ended)

    def ended(self, verdict: Verdict, delete: Callable[[], tuple[str, bool]]) -> JobFailed:
        """The error of a job that is waited for no longer.

        Args:
            verdict: Why.
            delete: Ends it, once all that it can tell is known; gives what became of it, and whether it may live on.
        """
        cause = verdict.cause
        if verdict.never_started and (said := self._warnings()):
            cause += "; events: " + "; ".join(said)
        fate, leaves_open = delete()
        shown = verdict.replica or "master-0"
        return JobFailed(
            self._job,
            cause,
            replica=verdict.replica,
            last_lines=last_lines(self._lines.get(shown, ())),
            log_uri=self._log_uris.get(shown),
            hint=verdict.hint,
            fate=fate,
            leaves_open=leaves_open,
        )

    def _patience_s(self) -> float:
        """For the next question.

        Raises:
            ApiError: the time for all of them is over.
        """
        left_s = self._until - self._clock()
        if left_s <= 0:
            raise ApiError(f"what job {self._job} left behind", None, f"not asked for any more after {_ALL_S:g} s")
        return min(left_s, _PATIENCE_S)

    def _tail(self, replica: Replica) -> list[str]:
        try:
            return self._api.log_tail(replica.pod, CONTAINER, NUM_KEPT_LINES, self._patience_s())
        except ApiError as error:
            events.emit("warning", message=f"the log of {replica.name} can't be had: {error}")
            return self._streamed.get(replica.name, [])

    def _save(self, name: str, lines: list[str]) -> None:
        self._lines[name] = lines
        if uri := save_log(self._log_uri, name, lines):
            self._log_uris[name] = uri

    def _add_silent_failures(self) -> None:
        """Of replicas that were deleted as the others failed: those whose logs tell a failure of their own."""
        for name, lines in self._streamed.items():
            if name not in self._lines and tells_failure(lines):
                self._save(name, lines)
                self._ends.append(ReplicaEnd(name, None, lines))

    def _warnings(self) -> list[str]:
        """What Kubernetes warned of lately about the job and the first replicas that did not start."""
        waiting = [replica.pod for replica in self._replicas if not replica.started]
        said: dict[str, str] = {}
        try:
            for name in [self._job, *waiting[:_NUM_EVENTS]]:
                told = self._api.list_events(name, self._patience_s())
                said |= {_words(event): name for event in told if event.get("type") == "Warning"}
        except ApiError as error:
            events.emit("warning", message=f"Kubernetes' events are not known: {error}")
        return [f"{name}: {words}" for words, name in said.items()][-_NUM_EVENTS:]


def _words(event: Mapping[str, Any]) -> str:
    return f"{event.get('reason')}: {event.get('message')}"
