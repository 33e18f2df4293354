"""What a job that failed leaves behind: the ends of its replicas' logs, saved and shown, and why, in few lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thaw.components import events, storage
from thaw.components.launcher.failure import JobFailed, ReplicaEnd, job_failed, last_lines
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.kubernetes.pods import Replica
from thaw.components.launcher.kubernetes.watchdog import Verdict
from thaw.components.launcher.pytorchjob import CONTAINER, JobState

_NUM_KEPT_LINES = 400
_NUM_LOGS = 32
"""Of more replicas the logs are left where they are."""
_NUM_EVENTS = 3
_PATIENCE_S = 20.0
"""For each of these questions. The failure is told, whether they are answered or not."""


class Remains:
    """The replicas of a job that has ended, or is about to be."""

    def __init__(self, api: Api, job: str, replicas: Sequence[Replica], log_uri: str):
        """Save the ends of the logs of all replicas that failed, or where none did, of all that ran.

        Args:
            api: Where the job is.
            job: Its name.
            replicas: Those that have a pod.
            log_uri: Folder for the logs, `<replica>.log` each.
        """
        self._api = api
        self._job = job
        self._replicas = replicas
        self._failed = sorted(filter(lambda replica: replica.failed, replicas), key=lambda replica: replica.ended_at)
        self._log_uris: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}
        for replica in (self._failed or [replica for replica in replicas if replica.started])[:_NUM_LOGS]:
            uri = storage.join(log_uri, f"{replica.name}.log")
            try:
                self._lines[replica.name] = api.log_tail(replica.pod, CONTAINER, _NUM_KEPT_LINES, _PATIENCE_S)
                storage.write_bytes(uri, "".join(f"{line}\n" for line in self._lines[replica.name]).encode())
            except OSError as error:
                events.emit("warning", message=f"the log of {replica.name} is not saved: {error}")
                continue
            self._log_uris[replica.name] = uri

    def show(self, on_line: Callable[[str], None], but: str | None) -> None:
        """Give out the last lines of each, those of one replica excepted."""
        for name, lines in self._lines.items():
            if name != but:
                for line in last_lines(lines):
                    on_line(f"[{name}] {line}")

    def failed(self, state: JobState, fate: str, had_ended: bool) -> JobFailed:
        """The error of a job that the operator calls failed."""
        if not self._failed:
            cause = f"no replica is left that shows why; {state.last_condition}"
            return JobFailed(self._job, cause, fate=fate, had_ended=had_ended)
        ends = [
            ReplicaEnd(replica.name, replica.exit_code, self._lines.get(replica.name, ()), replica.reason)
            for replica in self._failed
        ]
        return job_failed(self._job, ends, self._log_uris, fate=fate, had_ended=had_ended)

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

    def _warnings(self) -> list[str]:
        """What Kubernetes warned of lately about the job and the first replicas that did not start."""
        waiting = [replica.pod for replica in self._replicas if not replica.started]
        said: dict[str, str] = {}
        try:
            for name in [self._job, *waiting[:_NUM_EVENTS]]:
                told = self._api.list_events(name, _PATIENCE_S)
                said |= {_words(event): name for event in told if event.get("type") == "Warning"}
        except ApiError as error:
            events.emit("warning", message=f"Kubernetes' events are not known: {error}")
        return [f"{name}: {words}" for words, name in said.items()][-_NUM_EVENTS:]


def _words(event: Mapping[str, Any]) -> str:
    return f"{event.get('reason')}: {event.get('message')}"
