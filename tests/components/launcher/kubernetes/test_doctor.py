"""What is found at an API server of a test, in what an API server of Kubernetes answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_server import Handler, SlowServer

from thaw.components import storage
from thaw.components.config import load
from thaw.components.launcher.kubernetes.doctor import Finding, check_cluster
from thaw.components.launcher.kubernetes.rbac import rights

CONFIG = load("small", ["cluster.namespace=team", "cluster.queue=gpus", "cluster.service_account=trainer"])


def deployment(name: str, image: str, ready: int) -> dict[str, Any]:
    spec = {
        "selector": {},
        "template": {"metadata": {}, "spec": {"containers": [{"name": "c", "image": image}]}},
    }
    return {"metadata": {"name": name, "namespace": "kubeflow"}, "spec": spec, "status": {"readyReplicas": ready}}


OPERATOR = deployment("training-operator", "kubeflow/training-operator:v1-855e096", 1)
VERSION = {"major": "1", "minor": "30", "gitVersion": "v1.30.1", "gitCommit": "", "gitTreeState": "", "buildDate": ""}
VERSION |= {"goVersion": "", "compiler": "", "platform": ""}
RESOURCE = {"name": "pytorchjobs", "singularName": "", "namespaced": True, "kind": "PyTorchJob", "verbs": []}
KUEUE = {"groupVersion": "kueue.x-k8s.io/v1beta1", "version": "v1beta1"}
QUEUE = {"spec": {"clusterQueue": "all-gpus"}, "status": {"conditions": [{"type": "Active", "status": "True"}]}}


class ClusterServer(SlowServer):
    """Answers a path with what it holds; a number is a refusal with that status.

    Attributes:
        answers: By path.
        refused: Verbs and resources that nobody may use, as `get pods/log`.
        reviews: What was asked about rights.
    """

    def __init__(self) -> None:
        super().__init__(_Cluster)
        self.refused: set[str] = set()
        self.reviews: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {
            "/version/": VERSION,
            "/api/v1/namespaces/team": {"metadata": {"name": "team"}},
            "/apis/kubeflow.org/v1": {"groupVersion": "kubeflow.org/v1", "resources": [RESOURCE]},
            "/apis/apps/v1/deployments": {"metadata": {}, "items": [deployment("dns", "dns:1", 1), OPERATOR]},
            "/api/v1/namespaces/team/serviceaccounts/trainer": {"metadata": {"name": "trainer"}},
            "/apis/": {"groups": [{"name": "kueue.x-k8s.io", "versions": [KUEUE], "preferredVersion": KUEUE}]},
            "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues/gpus": QUEUE,
        }


class _Cluster(Handler):
    server: ClusterServer

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        path = self.path.partition("?")[0]
        if path.endswith("subjectaccessreviews"):
            review = json.loads(body)
            self.server.reviews.append(review)
            asked = review["spec"]["resourceAttributes"]
            resource = "/".join([asked["resource"], *([asked["subresource"]] if asked.get("subresource") else [])])
            answer: Any = review | {"status": {"allowed": f"{asked['verb']} {resource}" not in self.server.refused}}
        else:
            answer = self.server.answers.get(path, 404)
        status, document = (answer, {"kind": "Status"}) if isinstance(answer, int) else (200, answer)
        return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ClusterServer]:
    """A cluster that has all that is needed, and KUBECONFIG leads to it."""
    server = ClusterServer()
    cluster = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    kubeconfig = {"clusters": [cluster], "users": [{"name": "u", "user": {"token": "t"}}], "contexts": [context]}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig | {"current-context": "c"}))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with server.at_work():
        yield server


def findings(root: str = "memory://root", **options: str) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_cluster(CONFIG, root, **options)}


def test_a_cluster_that_has_all_is_found_well_by_looking_alone(server: ClusterServer) -> None:
    found = findings()
    assert {name: finding.state for name, finding in found.items() if finding.state != "ok"} == {
        "root: read": "unknown",
        "root: write": "unknown",
        "data": "unknown",
    }
    assert found["Kubernetes"].words == f"{server.url}, v1.30.1"
    assert found["training operator"].words == "kubeflow/training-operator: kubeflow/training-operator:v1-855e096"
    assert found["queue gpus"].words == "of ClusterQueue all-gpus"
    posted = {path for method, path in server.requests if method != "GET"}
    assert posted == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}


def test_every_right_of_the_shipped_role_is_asked_about_and_each_that_is_missing_is_named(
    server: ClusterServer,
) -> None:
    server.refused = {f"{right.verb} {right.resource}" for right in rights()}
    missing = {name: finding for name, finding in findings().items() if finding.state == "missing"}
    assert set(missing) == {f"may {right.verb} {right.resource}" for right in rights()}
    assert missing["may get pods/log"].words == "you may not get pods/log in namespace team"
    assert missing["may patch pytorchjobs"].words == "you may not patch pytorchjobs.kubeflow.org in namespace team"
    assert missing["may get pods/log"].fix == "thaw rbac -n team | kubectl apply -f -"


def test_the_rights_can_be_those_of_the_steps_account(server: ClusterServer) -> None:
    server.refused = {"get pods/log"}
    found = findings(account="kubeflow:pipeline-runner")["may get pods/log"]
    assert found.words == "service account kubeflow:pipeline-runner may not get pods/log in namespace team"
    assert found.fix == "thaw rbac -n team --service-account kubeflow:pipeline-runner | kubectl apply -f -"
    spec = server.reviews[0]["spec"]
    assert spec["user"] == "system:serviceaccount:kubeflow:pipeline-runner"
    assert "system:serviceaccounts:kubeflow" in spec["groups"]


@pytest.mark.parametrize(
    ("path", "name", "words"),
    [
        ("/api/v1/namespaces/team", "namespace team", "is not there"),
        ("/apis/kubeflow.org/v1", "custom resource", "pytorchjobs.kubeflow.org v1 is not served"),
        ("/api/v1/namespaces/team/serviceaccounts/trainer", "service account trainer", "is not there"),
        ("/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues/gpus", "queue gpus", "is not there"),
    ],
)
def test_what_is_absent_is_missing_and_what_may_not_be_seen_is_unknown(
    server: ClusterServer, path: str, name: str, words: str
) -> None:
    server.answers[path] = 404
    missing = findings()[name]
    assert (missing.state, words in missing.words) == ("missing", True)
    assert missing.fix
    server.answers[path] = 403
    unknown = findings()[name]
    assert (unknown.state, unknown.words) == ("unknown", "can't tell: the server says 403 Forbidden")


def test_a_group_without_the_resource_is_missing(server: ClusterServer) -> None:
    server.answers["/apis/kubeflow.org/v1"]["resources"] = [RESOURCE | {"name": "tfjobs"}]
    assert findings()["custom resource"].words == "kubeflow.org/v1 is served without pytorchjobs"


def test_an_operator_is_looked_for_in_all_namespaces_by_name_or_image(server: ClusterServer) -> None:
    deployments = server.answers["/apis/apps/v1/deployments"]
    deployments["items"] = [deployment("own-name", "mirror/training-operator:v1", 2)]
    assert findings()["training operator"].state == "ok"
    deployments["items"] = [deployment("training-operator", "x", 0)]
    assert findings()["training operator"].words == "kubeflow/training-operator has no ready replica"
    deployments["items"] = []
    missing = findings()["training operator"]
    assert (missing.state, "no deployment" in missing.words) == ("missing", True)


def test_a_cluster_without_kueue_has_no_queue(server: ClusterServer) -> None:
    server.answers["/apis/"] = {"groups": []}
    assert "the cluster has no Kueue" in findings()["queue gpus"].words


def test_a_queue_that_is_not_active_is_missing(server: ClusterServer) -> None:
    stopped = {"type": "Active", "status": "False", "message": "ClusterQueue all-gpus doesn't exist"}
    queue = "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/localqueues/gpus"
    server.answers[queue] = {"spec": {"clusterQueue": "all-gpus"}, "status": {"conditions": [stopped]}}
    found = findings()["queue gpus"]
    assert (found.state, "all-gpus doesn't exist" in found.words) == ("missing", True)


def test_of_a_server_that_cannot_be_reached_nothing_more_is_asked(
    server: ClusterServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = (tmp_path / "kubeconfig").read_text().replace(server.url, "http://127.0.0.1:9")
    (tmp_path / "kubeconfig").write_text(document)
    found = findings()
    assert list(found) == ["Kubernetes", "root: list", "root: read", "root: write", "data"]
    assert "http://127.0.0.1:9 can't be reached" in found["Kubernetes"].words
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "no access to a Kubernetes cluster" in findings()["Kubernetes"].words


def test_a_server_that_knows_no_such_user_says_so(server: ClusterServer) -> None:
    server.answers["/version/"] = 401
    found = findings()
    assert (found["Kubernetes"].state, "knows no such user" in found["Kubernetes"].words) == ("missing", True)


def test_the_store_is_listed_and_read_and_never_written(server: ClusterServer, gcs_uri: str) -> None:
    storage.write_json(f"{gcs_uri}/runs/r1/run.json", {})
    before = storage.list_files(gcs_uri)
    found = findings(gcs_uri)
    assert (found["root: list"].state, found["root: read"].state) == ("ok", "ok")
    assert found["root: read"].words == f"{gcs_uri}/runs/r1/run.json"
    assert (found["root: write"].state, "without writing" in found["root: write"].words) == ("unknown", True)
    assert storage.list_files(gcs_uri) == before


def test_a_bucket_that_is_not_there_is_missing_as_root_and_as_data(server: ClusterServer, gcs_uri: str) -> None:
    absent = "gs://bucket-that-nobody-made"
    config = load("small", [f"data.uri={absent}/feed", "data.generate=null", "data.truth_path=null"])
    found = {finding.name: finding for finding in check_cluster(config, f"{absent}/root")}
    assert {name: found[name].state for name in ("root: list", "data")} == {"root: list": "missing", "data": "missing"}
    assert "no such bucket" in found["root: list"].words and absent in found["root: list"].words


def test_the_data_are_looked_for_where_the_document_says(server: ClusterServer, gcs_uri: str) -> None:
    config = load("small", [f"data.uri={gcs_uri}/feed", "data.generate=null", "data.truth_path=null"])

    def data() -> Finding:
        return check_cluster(config, gcs_uri)[-1]

    assert (data().state, "is not there, or holds no folder" in data().words) == ("missing", True)
    storage.write_json(f"{gcs_uri}/feed/requests/day/part", {})
    assert (data().state, data().words) == ("ok", f"{gcs_uri}/feed holds requests")


def test_a_folder_of_this_machine_is_no_root_for_a_cluster(server: ClusterServer, tmp_path: Path) -> None:
    assert "which no pod sees" in findings(str(tmp_path))["root"].words
