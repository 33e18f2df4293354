"""The cluster of KUBECONFIG, with a training operator: a real one where there is one, else the stand-in.

Where there is only an API server, the pods are processes of this machine (process_node.py). Tests that need more than
that are skipped with the reason.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from api_server import JOBS, PODS, SERVICES, Api, path
from process_node import ProcessNode
from training_operator import TrainingOperator, runs_in
from waiting import eventually

IMAGE = os.environ.get("THAW_TEST_IMAGE", "thaw:test")
"""Of the steps and the replicas, where pods are real; `kind load docker-image` brings it to a cluster of kind."""


@pytest.fixture(scope="session")
def api() -> Api:
    """The API server, asked as its administrator."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("no KUBECONFIG: no cluster to test on")
    api = Api(kubeconfig)
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    names = [crd["metadata"]["name"] for crd in api.request("GET", crds)["items"]]
    if "pytorchjobs.kubeflow.org" not in names:
        pytest.skip(
            f"the cluster of {kubeconfig} has no PyTorchJob: install the custom resource of training operator 1.9"
        )
    return api


@pytest.fixture(scope="session")
def has_nodes(api: Api) -> bool:
    """Whether pods are real."""
    return any("pods-are" not in node["metadata"].get("labels", {}) for node in api.list(None, "nodes"))


@pytest.fixture(scope="session")
def image(api: Api, has_nodes: bool) -> str:
    """An image that the nodes have, with Thaw in it; where pods are processes, its name alone is used."""
    found = {
        name for node in api.list(None, "nodes") for each in node["status"].get("images", ()) for name in each["names"]
    }
    if has_nodes and not any(name.endswith(IMAGE) for name in found):
        pytest.skip(f"no node has the image {IMAGE}: make it, and load it into the cluster")
    return IMAGE


@pytest.fixture(scope="session")
def real_nodes(has_nodes: bool) -> None:
    """For tests of what only real pods do."""
    if not has_nodes:
        pytest.skip("only an API server: no kubelet, no scheduler, no images, no limits")


@pytest.fixture(scope="module")
def namespace(api: Api, has_nodes: bool) -> Iterator[str]:
    """A new namespace, in which nothing is at work yet."""
    name = f"thaw-test-{uuid.uuid4().hex[:8]}"
    api.create(None, "namespaces", {"metadata": {"name": name}})
    if has_nodes:
        eventually(lambda: (api.get(name, "serviceaccounts", "default") or {}).get("secrets"), "a service account")
    yield name
    for plural in (JOBS, PODS, SERVICES):
        for each in api.list(name, plural):
            api.delete(name, plural, each["metadata"]["name"], grace_s=0)
    api.delete(None, "namespaces", name)
    if not has_nodes:  # No controller finishes the deletion.
        gone = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
        api.request("PUT", path(None, "namespaces", name, "finalize"), gone)


@pytest.fixture(scope="module")
def own_operator(api: Api, namespace: str) -> TrainingOperator:
    """The stand-in for the namespace, not at work by itself: `look()` has it act."""
    if real := runs_in(api):
        pytest.skip(f"a real training operator runs: {real}")
    return TrainingOperator(api, namespace)


@pytest.fixture(scope="module")
def cluster(api: Api, namespace: str, has_nodes: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A namespace in which PyTorchJobs run."""
    with ExitStack() as stack:
        if not has_nodes:
            folder = tmp_path_factory.mktemp("node")
            stack.enter_context(ProcessNode(api, namespace, folder, {"OMP_NUM_THREADS": "1"}).at_work())
        if runs_in(api) is None:
            operator = stack.enter_context(TrainingOperator(api, namespace).at_work())
            yield namespace
            assert not operator.faults, operator.faults
        else:
            yield namespace
