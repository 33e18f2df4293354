"""The rights that Thaw ships are enough for a launcher and for `thaw jobs`, and each of them is needed.

All is asked by a service account that has no right but those, with a token as a pod gets it. No pod ever runs: the
tests write what the operator and a kubelet would.
"""

import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from api_server import JOBS, PODS, Api, path
from launcher_jobs import stage_job
from namespaces import new_namespace
from player import SERVICE_ACCOUNT
from training_operator import runs_in
from waiting import eventually

from thaw.components import storage
from thaw.components.config import load
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob
from thaw.components.launcher.kubernetes import client, rbac
from thaw.components.launcher.kubernetes.doctor import check_cluster
from thaw.components.launcher.kubernetes.rbac import Right, rights
from thaw.components.launcher.kubernetes.run import run
from thaw.components.launcher.kubernetes.sweep import list_jobs, sweep

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:Unverified HTTPS request")]


class Cluster:
    """A namespace with the shipped Role, as its administrator sees it, and its jobs.

    Attributes:
        namespace: Its name.
    """

    def __init__(self, api: Api, namespace: str, folder: Path):
        self.api, self.namespace = api, namespace
        self._folder = folder
        api.create(namespace, "serviceaccounts", {"metadata": {"name": SERVICE_ACCOUNT}})
        for manifest in rbac.manifests(namespace, SERVICE_ACCOUNT):
            api.create(namespace, f"{manifest['kind'].lower()}s", manifest)
        self._role = manifest["roleRef"]["name"]
        token_path = path(namespace, "serviceaccounts", SERVICE_ACCOUNT, "token")
        token = api.request("POST", token_path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        self.kubeconfig = folder / "kubeconfig-runner"
        self.kubeconfig.write_text(api.kubeconfig_of(token, namespace))

    def grant(self, *granted: Right) -> None:
        """Have the Role grant these rights and no others, and wait until the server goes by it."""
        rules = [{"apiGroups": [each.group], "resources": [each.resource], "verbs": [each.verb]} for each in granted]
        self.api.request("PATCH", path(self.namespace, "roles", self._role), {"rules": rules})
        refused = {f"may {right.verb} {right.resource}" for right in rights() if right not in granted}
        eventually(lambda: self.missing() == refused, "the server's going by the new rights")

    def missing(self) -> set[str]:
        """What the doctor misses, the operator excepted."""
        config = load("small", [f"cluster.namespace={self.namespace}"])
        found = check_cluster(config, "memory://root")
        return {each.name for each in found if each.state == "missing" and each.name != "training operator"}

    def job(self) -> TrainingJob:
        """A job of its own, whose launcher waits one second for a pod."""
        overrides = [f"cluster.namespace={self.namespace}", "cluster.poll_s=0.2", "cluster.start_timeout_s=1"]
        run_id = f"run-{uuid.uuid4().hex[:8]}"
        job = stage_job(load("small", overrides), run_id=run_id, output_uri=str(self._folder / run_id))
        storage.create_json(job.spec_uri, job.spec.model_dump(mode="json"))
        return job

    def make(self, job: TrainingJob, *conditions: str, failed_master: bool = False) -> dict[str, Any]:
        """The PyTorchJob of a job, made by somebody else, with a status; and with a pod, which has failed."""
        made = self.api.create(self.namespace, JOBS, pytorchjob.render(job))
        told = [{"type": each, "status": "True", "message": f"is {each}"} for each in conditions]
        self.api.set_status(self.namespace, JOBS, made | {"status": {"conditions": told, "replicaStatuses": {}}})
        if failed_master:
            container = {"name": pytorchjob.CONTAINER, "image": "none"}
            labels = {pytorchjob.JOB_LABEL: job.name, "training.kubeflow.org/replica-type": "master"}
            labels |= {"training.kubeflow.org/replica-index": "0"}
            metadata = {"name": f"{job.name}-master-0", "labels": labels}
            pod = {"metadata": metadata, "spec": {"schedulerName": "nobody", "containers": [container]}}
            self.api.create(self.namespace, PODS, pod)
            ended = {"name": container["name"], "image": "", "imageID": "", "ready": False, "restartCount": 0}
            ended["state"] = {"terminated": {"exitCode": 3, "finishedAt": "2026-03-02T06:00:00Z"}}
            status = {"phase": "Failed", "containerStatuses": [ended]}
            self.api.request("PATCH", path(self.namespace, PODS, metadata["name"], "status"), {"status": status})
        return made

    def owner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pod in which the launcher could be: jobs that it takes up are made to belong to it."""
        name = f"step-{uuid.uuid4().hex[:8]}"
        spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none"}]}
        pod = self.api.create(self.namespace, PODS, {"metadata": {"name": name}, "spec": spec})
        monkeypatch.setenv("KFP_POD_NAME", name)
        monkeypatch.setenv("KFP_POD_UID", pod["metadata"]["uid"])


@pytest.fixture(scope="module")
def shared_cluster(api: Api, has_nodes: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if real := runs_in(api):
        pytest.skip(f"a real training operator runs, and would change the jobs of these tests: {real}")
    with new_namespace(api, has_nodes) as namespace:
        yield Cluster(api, namespace, tmp_path_factory.mktemp("rbac"))


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster; this process is the service account's."""
    monkeypatch.setenv("KUBECONFIG", str(shared_cluster.kubeconfig))
    for name in ("KFP_POD_NAME", "KFP_POD_UID", "POD_NAME", "POD_UID"):
        monkeypatch.delenv(name, raising=False)
    return shared_cluster


def launch(job: TrainingJob) -> None:
    run(job, pytorchjob.render(job), print)


def end_to_end(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a launcher and `thaw jobs` can come to do at the API server; the last failure is raised."""
    listed = list_jobs(client.Api(cluster.namespace))
    succeeded = cluster.job()
    cluster.make(succeeded, "Succeeded")
    launch(succeeded)
    cluster.owner(monkeypatch)
    taken_up = cluster.job()
    cluster.make(taken_up, "Succeeded")
    launch(taken_up)
    failed = cluster.job()
    cluster.make(failed, "Failed", failed_master=True)
    with pytest.raises(JobFailed, match=r"master-0.* ended with exit code 3"):
        launch(failed)
    with pytest.raises(JobFailed, match="not started") as never_started:
        launch(cluster.job())
    assert cluster.api.get(cluster.namespace, JOBS, never_started.value.job) is None
    assert len(list_jobs(client.Api(cluster.namespace))) == len(listed) + 3


def test_with_the_shipped_rights_a_launcher_can_do_all_and_nothing_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.grant(*rights())
    end_to_end(cluster, monkeypatch)
    orphan = cluster.job()
    cluster.make(orphan, "Running")
    storage.write_json(storage.join(orphan.spec.output_uri, "failure.json"), {})
    api = client.Api(cluster.namespace)
    fates = {verdict.job.name: verdict.fate for verdict in sweep(api, list_jobs(api), delete=True)}
    assert fates[orphan.name] == "deleted"
    assert cluster.api.get(cluster.namespace, JOBS, orphan.name) is None
    assert "Forbidden" not in capsys.readouterr().out


@pytest.mark.parametrize("right", rights(), ids=lambda right: f"{right.verb}-{right.resource}")
def test_without_one_right_the_error_names_verb_resource_and_namespace(
    right: Right, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.grant(*(each for each in rights() if each != right))
    job = cluster.job()
    if right.verb == "patch":  # The job goes on without its owner.
        cluster.owner(monkeypatch)
        cluster.make(job, "Succeeded")
    elif right.resource == "pods/log":
        cluster.make(job, "Failed", failed_master=True)
    is_survived = right.verb == "patch"
    with nullcontext() if is_survived else pytest.raises((JobFailed, client.ApiError)) as failure:
        if (right.verb, right.resource) == ("list", "pytorchjobs"):
            list_jobs(client.Api(cluster.namespace))
        else:
            launch(job)
    told = f"{failure.value if failure else ''}\n{capsys.readouterr().out}".splitlines()
    refusals = [line.replace('\\"', '"') for line in told if "403 Forbidden" in line]
    assert refusals
    for refusal in refusals:
        assert f"{right.verb} {right} " in refusal
        assert f" in namespace {cluster.namespace}: 403" in refusal
        assert f'cannot {right.verb} resource "{right.resource}"' in refusal
