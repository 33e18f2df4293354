"""Against a real API server with the real custom resource: KUBECONFIG names it."""

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
from launcher_jobs import ON_A_CLUSTER, STAGES, stage_job

from thaw.components.config import load
from thaw.components.launcher import pytorchjob

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
    pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="no KUBECONFIG: no API server to ask"),
]

SERVER_SETS = {"creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"}


@pytest.fixture(scope="module")
def jobs() -> Iterator[Any]:
    """The PyTorchJobs of namespace default."""
    from kubernetes import client, config
    from kubernetes.dynamic import DynamicClient

    config.load_kube_config(os.environ["KUBECONFIG"])
    yield DynamicClient(client.ApiClient()).resources.get(api_version="kubeflow.org/v1", kind="PyTorchJob")


def stored(jobs: Any, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the server has of a manifest, apart from what it adds to every object."""
    name = manifest["metadata"]["name"]
    jobs.create(body=manifest, namespace="default")
    try:
        found = jobs.get(name=name, namespace="default").to_dict()
    finally:
        jobs.delete(name=name, namespace="default")
    found["metadata"] = {key: value for key, value in found["metadata"].items() if key not in SERVER_SETS}
    return dict(found)


def rendered(stage: str, *overrides: str) -> dict[str, Any]:
    config = load("small", [*overrides, "cluster.namespace=default"])
    return pytorchjob.render(stage_job(config, stage, run_id=f"test-{os.getpid()}"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("overrides", [(), ("training.num_nodes=1",), ON_A_CLUSTER], ids=["2x1", "1x1", "8x8"])
def test_the_server_keeps_every_field_as_it_was_sent(jobs: Any, stage: str, overrides: tuple[str, ...]) -> None:
    manifest = rendered(stage, *overrides)
    assert stored(jobs, manifest) == manifest


def test_the_server_prunes_a_field_that_the_resource_does_not_have(jobs: Any) -> None:
    manifest = rendered("train-frozen")
    sent = copy.deepcopy(manifest)
    sent["spec"]["cleanPodPolicy"] = "Running"  # Where versions before 1.3 had it.
    assert stored(jobs, sent) == manifest
