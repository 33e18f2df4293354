"""Whether a job is the one that an attempt launched, and whose it is: it goes with the pod that owns it."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from thaw.components import events
from thaw.components.launcher.kubernetes import access
from thaw.components.launcher.kubernetes.client import ANYONE, Api, ApiError, owner_uids
from thaw.components.launcher.pytorchjob import RUN_ID, SPEC_DIGEST, SPEC_URI

_POD_VARIABLES = (("KFP_POD_NAME", "KFP_POD_UID"), ("POD_NAME", "POD_UID"))
_NUM_TRIES = 20
"""Of a change to a job that changes by itself at the same time."""


def owner_references(namespace: str) -> list[dict[str, str]]:
    """This step's pod, so that the job goes when the pod is removed; none outside of a pod.

    An owner in another namespace does not count: the garbage collector would take it for gone, and the job with it.
    """
    with suppress(FileNotFoundError):
        if access.POD_NAMESPACE_PATH.read_text().strip() != namespace:
            return []
    for name, uid in _POD_VARIABLES:
        if name in os.environ and uid in os.environ:
            return [{"apiVersion": "v1", "kind": "Pod", "name": os.environ[name], "uid": os.environ[uid]}]
    return []


def check_same_job(manifest: Mapping[str, Any], found: Mapping[str, Any], launched: Mapping[str, Any] | None) -> None:
    """Refuses a job that only has the name.

    Args:
        manifest: What this launcher would create.
        found: What is there.
        launched: What an earlier launcher recorded of the job that it created.
    """
    metadata, ours = found["metadata"], manifest["metadata"]
    theirs = metadata.get("annotations") or {}
    name = f"PyTorchJob {ours['name']} in namespace {ours['namespace']}"
    advice = "It is left alone: delete it, or start a new run"
    if any(theirs.get(key) != ours["annotations"][key] for key in (RUN_ID, SPEC_DIGEST, SPEC_URI)):
        raise ValueError(
            f"{name} is there already and of {_work(theirs)}; this is {_work(ours['annotations'])}. {advice}"
        )
    if launched and launched["uid"] != metadata["uid"]:
        raise ValueError(
            f"{name} has uid {metadata['uid']}, and the one that this attempt launched had {launched['uid']}. {advice}"
        )


def take_over(
    api: Api, found: dict[str, Any], owners: list[dict[str, str]], patience_s: float
) -> tuple[dict[str, Any] | None, str | None]:
    """Have a job belong to this step's pod: its owner may be another try of the step, and it would go with that pod.

    Where that is refused, or yet another start of the step takes it up at this moment, its owner stays.

    Args:
        api: Where it is.
        found: The job.
        owners: From `owner_references`.
        patience_s: How long each call is tried.

    Returns:
        The job, None where it is gone; and the uid of the owner that leaves its deletion to this launcher, None where
        it has none.
    """
    name, uid, before = found["metadata"]["name"], found["metadata"]["uid"], owner_uids(found)
    ours = owners[0]["uid"] if owners else None
    for _ in range(_NUM_TRIES):
        if (found["metadata"].get("ownerReferences") or []) == owners:
            return found, ours
        # Only as it was seen: whoever was faster keeps it.
        change = {"ownerReferences": owners, "resourceVersion": found["metadata"].get("resourceVersion")}
        try:
            again = api.patch_job(name, {"metadata": change}, patience_s)
        except ApiError as error:
            if error.status != 409:
                events.emit("warning", message=f"job {name} stays with the pod that it has as its owner: {error}")
                return found, next(iter(before), None)
            again = api.get_job(name, patience_s)
        if again is None or again["metadata"]["uid"] != uid:
            return None, ANYONE
        found = again
        if owner_uids(found) not in (before, [ours] if ours else []):
            break
    events.emit("warning", message=f"job {name} was taken up by another start of the step at the same moment")
    return found, ours


def _work(annotations: Mapping[str, str]) -> str:
    return (
        f"run {annotations.get(RUN_ID)!r}, work {annotations.get(SPEC_DIGEST)}, recorded in {annotations.get(SPEC_URI)}"
    )
