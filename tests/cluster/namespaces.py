"""Namespaces of their own for tests."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from api_server import JOBS, PODS, SERVICES, Api, path
from kubernetes.client import ApiException
from waiting import eventually


@contextmanager
def new_namespace(api: Api, has_nodes: bool) -> Iterator[str]:
    """A namespace in which nothing is at work yet."""
    name = f"thaw-test-{uuid.uuid4().hex[:8]}"
    api.create(None, "namespaces", {"metadata": {"name": name}})
    if has_nodes:
        until_pods_can_be_made(api, name, "default")
    try:
        yield name
    finally:
        for plural in (JOBS, PODS, SERVICES):
            for each in api.list(name, plural):
                api.delete(name, plural, each["metadata"]["name"], grace_s=0)
        api.delete(None, "namespaces", name)
        if not has_nodes:  # No controller finishes the deletion.
            gone = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
            api.request("PUT", path(None, "namespaces", name, "finalize"), gone)


def until_pods_can_be_made(api: Api, namespace: str, account: str) -> None:
    """Wait until a service account has what the server gives its pods."""
    containers = [{"name": "none", "image": "none"}]
    pod = {"metadata": {"name": "none"}, "spec": {"serviceAccountName": account, "containers": containers}}

    def can_be_made() -> bool:
        try:
            api.request("POST", path(namespace, PODS), pod, dryRun="All")
        except ApiException:
            return False
        return True

    eventually(can_be_made, f"the service account {account}")
