"""What the pods of a job say of themselves: whether they started, what they wait for, how they ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thaw.components.launcher.pytorchjob import CONTAINER

_NEVER_HEALS = {"InvalidImageName", "ErrImageNeverPull"}
_SAYS_NOTHING = {"Completed", "Error", "ContainerCreating", "PodInitializing"}


@dataclass(frozen=True)
class Replica:
    """A replica of a job, as its pod shows it."""

    name: str
    """`master-0`, `worker-0`, ..."""
    pod: str
    uid: str
    """Of its pod: one that is made anew has the same name and another uid."""
    deleted: bool
    """Its pod is on its way out."""
    started: bool
    """Its container runs, or ran."""
    failed: bool
    waits_for: str | None
    """What keeps it from starting, in Kubernetes' words."""
    heals: bool
    """False where it waits for what no time brings."""
    num_restarts: int
    """Of all its containers."""
    exit_code: int | None
    """Of its container, where that ended."""
    reason: str | None
    """Why it ended, where more is known than an exit code: `OOMKilled`; `Evicted: The node was low on memory`."""
    ended_at: str
    """UTC, ISO 8601, where it ended."""


class Roll:
    """Whose pod was deleted by somebody else. Of such a replica no pod is left that says so.

    A job whose pod is drained or preempted fails, and then its operator deletes the others' pods as well. A pod that is
    deleted by force is made anew, and the others fail, as they have lost its ranks.
    """

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}
        self._replaced: set[str] = set()

    def call(self, replicas: Sequence[Replica]) -> None:
        """Take in what pods there are; to be called at each look."""
        new = [each for each in replicas if each.started and not each.deleted and each.name not in self._uids]
        self._uids |= {each.name: each.uid for each in new}
        self._replaced |= {each.name for each in replicas if self._uids.get(each.name, each.uid) != each.uid}

    def deleted(self, replicas: Sequence[Replica], failed_kinds: Collection[str]) -> list[str]:
        """The replicas that were deleted before the job failed.

        Args:
            replicas: Those that have a pod, now that the job has failed.
            failed_kinds: Of the replicas that the operator counts as failed.
        """
        if self._replaced or any(each.failed for each in replicas):
            return sorted(self._replaced)
        left = {each.name for each in replicas if not each.deleted}
        return [name for name in self._uids if name not in left and name.rpartition("-")[0] in failed_kinds]


def replicas(job: str, pods: Sequence[Mapping[str, Any]]) -> list[Replica]:
    """The replicas that have a pod, by name."""
    return sorted((_replica(job, pod) for pod in pods), key=lambda replica: replica.name)


def _replica(job: str, pod: Mapping[str, Any]) -> Replica:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    own: dict[str, Any] = next((each for each in containers if each.get("name") == CONTAINER), {})
    # A container that is started again shows its last end apart from its state.
    ended = _state(own, "terminated") or (own.get("lastState") or {}).get("terminated") or {}
    # In a pod that failed another container can be to blame: an init container, for which this one only waited.
    if not ended.get("exitCode") and status.get("phase") == "Failed":
        others = [each for container in containers if (each := _state(container, "terminated"))]
        ended = next((each for each in others if each.get("exitCode")), ended)
    waiting = [each for container in containers if (each := _state(container, "waiting"))]
    reasons = {each.get("reason") for each in waiting}
    name = pod["metadata"]["name"]
    return Replica(
        name=name.removeprefix(f"{job}-"),
        pod=name,
        uid=pod["metadata"]["uid"],
        deleted="deletionTimestamp" in pod["metadata"],
        started=_state(own, "running") is not None or bool(ended) or status.get("phase") in ("Succeeded", "Failed"),
        failed=status.get("phase") == "Failed",
        waits_for=_waits_for(status, waiting),
        heals=not reasons & _NEVER_HEALS,
        num_restarts=sum(container.get("restartCount") or 0 for container in containers),
        exit_code=ended.get("exitCode"),
        reason=_reason(status, ended),
        ended_at=ended.get("finishedAt") or "",
    )


def _state(container: Mapping[str, Any], kind: str) -> Any:
    return (container.get("state") or {}).get(kind)


def _waits_for(status: Mapping[str, Any], waiting: Sequence[Mapping[str, Any]]) -> str | None:
    for condition in status.get("conditions") or []:
        if (condition.get("type"), condition.get("status")) == ("PodScheduled", "False"):
            return _words(condition)
    telling = [each for each in waiting if each.get("reason") not in _SAYS_NOTHING]
    return _words((telling or waiting)[0]) if waiting else None


def _reason(status: Mapping[str, Any], ended: Mapping[str, Any]) -> str | None:
    if status.get("phase") == "Failed" and status.get("reason"):
        return _words(status)
    if ended.get("reason") in _SAYS_NOTHING:
        return None
    return ended.get("reason")


def _words(said: Mapping[str, Any]) -> str:
    reason, message = said.get("reason") or "no reason given", said.get("message")
    return f"{reason}: {message}" if message else reason
