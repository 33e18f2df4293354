import pytest
from kfp_server import Fault

from thaw.components.launcher.kubernetes.doctor import Finding
from thaw.pipelines.kubeflow import doctor


@pytest.fixture
def cluster(monkeypatch):
    """What is found of the cluster, which its own tests look at."""
    found = [Finding("PyTorchJob", "ok", "kubeflow.org/v1")]
    monkeypatch.setattr(doctor, "check_cluster", lambda *arguments: found)
    return found


@pytest.fixture
def check(thaw, config_options, gcs_uri):
    return lambda *arguments: thaw("doctor", *config_options, "--root", gcs_uri, *arguments)


def test_a_context_that_is_ready_is_a_table_and_status_0_and_nothing_is_changed(check, cluster, kfp_server):
    result = check()
    assert result.exit_code == 0, result.output
    lines = [line.split(maxsplit=2)[:2] for line in result.output.splitlines()[1:]]
    assert lines == [["ok", "Kubeflow"], ["ok", "Kubeflow's"], ["unknown", "image"], ["ok", "PyTorchJob"]]
    assert {method for method, _, _ in kfp_server.requests} == {"GET"}


@pytest.mark.parametrize(
    ("health", "words"),
    [
        ({"tag_name": "2.14.3"}, "2.14: runs can be submitted"),
        ({"tag_name": "unknown"}, "the server does not say"),
        ({"multi_user": True}, "give --namespace"),
    ],
)
def test_what_the_server_lacks_is_said_with_what_to_do(check, cluster, kfp_server, health, words):
    kfp_server.health = health
    result = check()
    assert words in result.output
    assert result.exit_code == (0 if "unknown" in health.values() else 1)


def test_a_server_that_is_not_there_does_not_hide_the_rest(check, cluster, kfp_server):
    kfp_server.faults.append(Fault("GET", "/healthz", status=403, body='{"message": "RBAC: access denied"}'))
    result = check()
    assert result.exit_code == 1
    assert "403 Forbidden. RBAC: access denied" in result.output and "PyTorchJob" in result.output
    assert result.output.splitlines()[-1] == "Error: 1 missing"


def test_what_the_cluster_lacks_is_status_1(check, cluster):
    cluster.append(Finding("create pytorchjobs", "missing", "pipeline-runner may not", "kubectl apply -f rbac.yaml"))
    result = check()
    assert result.exit_code == 1
    assert "pipeline-runner may not" in result.output and "kubectl apply -f rbac.yaml" in result.output


def test_an_image_by_its_tag_is_said_to_be_one_that_can_change(check, cluster):
    assert "a tag, under which another image can come to lie" in check("--set", "cluster.image=thaw:1").output


def test_a_password_in_the_root_or_the_address_is_not_repeated(check, cluster, kfp_server):
    in_root = check("--root", "http://ann:hunter2@127.0.0.1:1/x")
    kfp_server.host = "http://ann:hunter2@127.0.0.1:1"
    in_address = check()
    assert in_root.exit_code == in_address.exit_code == 1
    assert "--root: a password" in in_root.output
    assert "--host: a user or password" in in_address.output and "PyTorchJob" in in_address.output
    assert "hunter2" not in in_root.output + in_address.output


def test_a_damaged_kubeconfig_is_found_missing_in_one_line(check, tmp_path, monkeypatch):
    (tmp_path / "kubeconfig").write_text("clusters: [a, b")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setenv("COLUMNS", "1000")
    result = check()
    (line,) = (line for line in result.output.splitlines() if "no access to a Kubernetes cluster" in line)
    assert result.exit_code == 1 and line.startswith("missing") and "while parsing a flow sequence" in line
