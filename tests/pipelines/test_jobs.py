import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from thaw.components import storage
from thaw.components.launcher.kubernetes import rbac
from thaw.pipelines.cli import main

sys.path.append(str(Path(__file__).parents[1] / "components/launcher/kubernetes"))
from jobs_server import JobsServer, at_work, stored_job

Serve = Callable[..., JobsServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    with at_work(tmp_path, monkeypatch) as start:
        yield start


def thaw(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def orphan(tmp_path: Path, run_id: str) -> dict[str, Any]:
    storage.write_json(f"{tmp_path}/{run_id}/failure.json", {})
    return stored_job(f"{tmp_path}/{run_id}", run_id, "Running")


def test_jobs_are_listed_with_run_stage_and_state(serve: Serve, tmp_path: Path) -> None:
    serve(stored_job(tmp_path, "daily-2026-03-02", "Created", "Running"))
    result = thaw("jobs")
    assert result.exit_code == 0
    _, line = result.output.splitlines()
    assert line.split()[1:5] == ["daily-2026-03-02", "train-frozen", "1", "running"]


def test_a_namespace_without_jobs_says_so(serve: Serve) -> None:
    serve()
    assert "no jobs of Thaw in namespace team" in thaw("jobs").output
    assert "no job of Thaw is at work in namespace team" in thaw("jobs", "sweep").output


def test_a_sweep_deletes_only_when_told_to(serve: Serve, tmp_path: Path) -> None:
    server = serve(orphan(tmp_path, "lost"), stored_job(tmp_path / "other", "doubtful", "Running"))
    result = thaw("jobs", "sweep")
    assert result.exit_code == 0
    assert "1 orphaned; with --delete they are deleted" in result.output
    assert f"its attempt has failed: {tmp_path}/lost/failure.json" in result.output
    assert len(server.jobs) == 2
    result = thaw("jobs", "sweep", "--delete", "--namespace", "team")
    assert result.exit_code == 0
    assert "deleted" in result.output
    assert [job["metadata"]["annotations"]["thaw/run-id"] for job in server.jobs.values()] == ["doubtful"]


def test_an_orphan_that_cannot_be_deleted_is_told_and_the_status_is_1(serve: Serve, tmp_path: Path) -> None:
    server = serve(orphan(tmp_path, "lost"))
    server.forbidden = {"DELETE"}
    result = thaw("jobs", "sweep", "--delete")
    assert result.exit_code == 1
    assert "1 of 1 orphaned jobs could not be deleted: delete pytorchjobs.kubeflow.org" in result.output


def test_no_kubeconfig_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = thaw("jobs", "sweep")
    assert result.exit_code == 1
    assert "no access to a Kubernetes cluster" in result.output


def test_a_context_that_the_kubeconfig_does_not_have_is_named(serve: Serve) -> None:
    serve()
    result = thaw("jobs", "--context", "prod")
    assert result.exit_code == 1
    assert "context 'prod': the kubeconfig has only fake" in result.output


@pytest.mark.parametrize(
    ("account", "namespace"), [("steps", "team"), ("kubeflow:steps", "kubeflow")], ids=["same", "another"]
)
def test_the_rights_are_printed_for_a_namespace_and_an_account(account: str, namespace: str) -> None:
    role, binding = yaml.safe_load_all(thaw("rbac", "-n", "team", "--service-account", account).output)
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "team")
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "team")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "steps", "namespace": namespace}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


def test_the_file_that_lies_in_the_package_is_what_is_printed_by_default() -> None:
    printed = list(yaml.safe_load_all(thaw("rbac").output))
    assert printed == list(yaml.safe_load_all(rbac.MANIFEST.read_text()))
