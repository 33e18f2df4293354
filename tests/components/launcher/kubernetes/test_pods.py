"""What is read from pods and jobs that say less, or other things, than usual."""

from typing import Any

import pytest

from thaw.components.launcher import pytorchjob
from thaw.components.launcher.kubernetes.pods import Replica, replicas


def replica(**status: Any) -> Replica:
    (found,) = replicas("job", [{"metadata": {"name": "job-worker-0", "uid": "1"}, "status": status}])
    return found


def ended(name: str, exit_code: int, reason: str = "Error") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": exit_code, "reason": reason}}}


def test_of_several_init_containers_the_one_that_failed_is_told() -> None:
    waits = {"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}
    inits = [ended("first", 0, "Completed"), ended("second", 137, "OOMKilled")]
    found = replica(phase="Failed", initContainerStatuses=inits, containerStatuses=[waits])
    assert (found.failed, found.exit_code, found.reason) == (True, 137, "OOMKilled")


def test_a_container_that_failed_beside_the_replicas_own_is_told() -> None:
    both = [ended("pytorch", 0, "Completed"), ended("sidecar", 3)]
    assert replica(phase="Failed", containerStatuses=both).exit_code == 3


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"containerStatuses": [{"state": None}]},
        {"containerStatuses": [{"name": "pytorch", "state": None, "lastState": None, "restartCount": None}]},
        {"conditions": [{"type": "PodScheduled"}]},
    ],
)
def test_a_pod_that_says_less_has_not_started(status: dict[str, Any]) -> None:
    found = replica(**status)
    assert (found.started, found.failed, found.exit_code, found.num_restarts) == (False, False, None, 0)


def test_a_condition_without_a_status_decides_nothing() -> None:
    status = {"conditions": [{"type": "Failed"}, {"status": "True"}], "replicaStatuses": {"Master": None}}
    state = pytorchjob.state({"metadata": {"labels": None}, "spec": {"runPolicy": None}, "status": status})
    assert not state.failed and not state.succeeded and state.failed_kinds == frozenset()
