"""Against a real API server with the real custom resource: KUBECONFIG names it."""

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


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("overrides", [(), ("training.num_nodes=1",), ON_A_CLUSTER], ids=["2x1", "1x1", "8x8"])
def test_the_server_keeps_every_field_as_it_was_sent(jobs: Any, stage: str, overrides: tuple[str, ...]) -> None:
    config = load("small", [*overrides, "cluster.namespace=default"])
    manifest = pytorchjob.render(stage_job(config, stage, run_id=f"test-{os.getpid()}"))
    name = manifest["metadata"]["name"]
    jobs.create(body=manifest, namespace="default")
    try:
        stored = jobs.get(name=name, namespace="default").to_dict()
    finally:
        jobs.delete(name=name, namespace="default")
    stored["metadata"] = {key: value for key, value in stored["metadata"].items() if key not in SERVER_SETS}
    assert stored == manifest
