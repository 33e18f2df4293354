"""The status of a PyTorchJob, as training operator 1.9 keeps it.

Source: https://github.com/kubeflow/trainer/blob/release-1.9/pkg/util/status.go, pkg/core/status.go, pkg/core/job.go.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

_EXCLUDED = {"Running": "Restarting", "Restarting": "Running"}


def set_condition(status: dict[str, Any], kind: str, message: str, *, value: str = "True", reason: str = "") -> None:
    """Appends a condition in place of the one of its type; after Failed nothing changes any more."""
    if is_true(status, "Failed"):
        return
    reason = f"PyTorchJob{reason or kind}"
    conditions = status.setdefault("conditions", [])
    before = next((each for each in conditions if each["type"] == kind), None)
    if before and (before["status"], before["reason"]) == (value, reason):
        return
    changed = before["lastTransitionTime"] if before and before["status"] == value else now()
    kept = [each for each in conditions if each["type"] not in (kind, _EXCLUDED.get(kind))]
    if kind in ("Succeeded", "Failed"):
        kept = [each | {"status": "False"} if each["type"] == "Running" else each for each in kept]
    new = {"type": kind, "status": value, "reason": reason, "message": message}
    status["conditions"] = [*kept, new | {"lastUpdateTime": now(), "lastTransitionTime": changed}]


def is_true(status: Mapping[str, Any], kind: str) -> bool:
    """Whether the job has a condition."""
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions", ()))


def is_finished(status: Mapping[str, Any]) -> bool:
    """Whether the job has succeeded or failed."""
    return is_true(status, "Succeeded") or is_true(status, "Failed")


def count_pods(pods: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The status of a replica type; what is zero is left out, as the server would. A dying pod counts as failed."""
    counts = {"active": 0, "succeeded": 0, "failed": 0}
    for pod in pods:
        phase = pod["status"].get("phase")
        if phase == "Running":
            counts["failed" if "deletionTimestamp" in pod["metadata"] else "active"] += 1
        elif phase in ("Succeeded", "Failed"):
            counts[phase.lower()] += 1
    return {name: count for name, count in counts.items() if count}


def past_backoff_limit(limit: int | None, pods: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the containers of the running pods were restarted as often as that."""
    if limit is None:
        return False
    running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
    restarts = sum(
        status.get("restartCount", 0)
        for pod in running
        for kind in ("initContainerStatuses", "containerStatuses")
        for status in pod["status"].get(kind, ())
    )
    return restarts >= max(limit, 1)


def exit_code(pod: Mapping[str, Any]) -> int:
    """Of the container `pytorch`; a pod that failed without one, as when it is evicted, can be tried again."""
    for status in pod["status"].get("containerStatuses", ()):
        if status["name"] == "pytorch" and "terminated" in status.get("state", {}):
            return status["state"]["terminated"]["exitCode"]
    return 0xBEEF


def seconds_since(time: str) -> float:
    """How long ago a time of the server is."""
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(time)).total_seconds()


def now() -> str:
    """The time as Kubernetes writes it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
