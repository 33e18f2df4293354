import copy
import re
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml
from launcher_jobs import ON_A_CLUSTER, STAGES, stage_job
from operator_webhook import faults

from thaw.components.config import load
from thaw.components.launcher import pytorchjob


def rendered(*overrides: str, stage: str = "train-frozen") -> dict[str, Any]:
    return pytorchjob.render(stage_job(load("small", overrides), stage))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("overrides", [(), ("training.num_nodes=1",), ON_A_CLUSTER], ids=["2x1", "1x1", "8x8"])
def test_every_training_stage_keeps_the_operators_rules(stage: str, overrides: tuple[str, ...]) -> None:
    assert faults(rendered(*overrides, stage=stage)) == []


def test_the_operators_rules_refuse_what_breaks_them() -> None:
    good = rendered()

    def broken(change: str) -> dict[str, Any]:
        job = copy.deepcopy(good)
        exec(change, {"job": job, "replicas": job["spec"]["pytorchReplicaSpecs"]})
        return job

    for change in (
        "job['metadata']['name'] = 'Bad_Name'",
        "job['metadata']['name'] = 'a' * 64",
        "replicas['Chief'] = replicas.pop('Worker')",
        "replicas['Master']['replicas'] = 2",
        "replicas['Worker']['replicas'] = 0",
        "replicas['Worker']['template']['spec']['containers'][0]['name'] = 'main'",
        "replicas['Worker']['template']['spec']['containers'][0].pop('image')",
        "replicas.clear()",
    ):
        assert len(faults(broken(change))) == 1, change


def test_the_manifest_is_the_one_that_was_reviewed() -> None:
    job = stage_job(load("small", ON_A_CLUSTER), "train-cotrain", attempt=2)
    golden = Template((Path(__file__).parent / "pytorchjob.yaml").read_text())
    expected = golden.substitute(name=job.name, digest=job.spec_digest, short_digest=job.spec_digest[:16])
    assert pytorchjob.render(job) == yaml.safe_load(expected)


def test_one_node_has_a_master_and_no_worker_key() -> None:
    assert list(rendered("training.num_nodes=1")["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_a_plain_job_asks_for_no_resources_and_no_port() -> None:
    container = rendered()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert not {"resources", "ports"} & container.keys()


def test_a_plain_job_has_no_queue_and_starts_at_once() -> None:
    job = rendered()
    assert job["spec"]["runPolicy"]["suspend"] is False
    assert "schedulingPolicy" not in job["spec"]["runPolicy"]
    assert "kueue.x-k8s.io/queue-name" not in job["metadata"]["labels"]


def test_a_secret_reaches_a_replica_by_reference_and_a_local_one_not_at_all() -> None:
    manifest = rendered("cluster.secret_env={TOKEN: {secret: hub, key: token}}")
    assert {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in manifest["spec"][
        "pytorchReplicaSpecs"
    ]["Worker"]["template"]["spec"]["containers"][0]["env"]
    assert not any("TOKEN" in pod.env for pod in pytorchjob.pods(manifest, "127.0.0.1", 1))


# https://github.com/kubeflow/trainer/blob/release-1.9/pkg/util/status.go
def test_a_state_is_read_by_type_and_status_wherever_a_condition_stands() -> None:
    job = rendered()
    assert pytorchjob.state(job).last_condition == "no condition"
    conditions = [
        {"type": "Failed", "status": "True", "message": "worker-0 failed"},
        {"type": "Succeeded", "status": "False", "message": ""},
        {"type": "Running", "status": "False", "message": "ran"},
    ]
    state = pytorchjob.state(job | {"status": {"conditions": conditions}})
    assert (state.failed, state.succeeded, state.started, state.suspended) == (True, False, False, False)
    assert state.last_condition == "last condition Failed: worker-0 failed"


def test_only_a_job_with_a_queue_is_queued_while_it_is_suspended() -> None:
    status = {"status": {"conditions": [{"type": "Suspended", "status": "True", "message": ""}]}}
    for overrides, queued in (((), False), (("cluster.queue=team",), True)):
        state = pytorchjob.state(rendered(*overrides) | status)
        assert (state.suspended, state.queued) == (True, queued)


def test_the_replicas_names_are_those_of_their_pods() -> None:
    assert pytorchjob.replica_names(rendered("training.num_nodes=3")) == ["master-0", "worker-0", "worker-1"]


def test_the_whole_name_of_a_pipeline_is_kept_in_an_annotation() -> None:
    name = "My_Very-Long_Pipeline" * 4
    metadata = rendered(f"name={name}")["metadata"]
    assert metadata["annotations"]["thaw/pipeline"] == name and len(metadata["name"]) <= 50


def test_labels_stand_for_long_and_odd_run_ids_and_the_annotation_has_the_whole() -> None:
    for run_id in ("r" * 64, "r" * 63 + "-", "a run, by hand", "-", "._" * 40, "ok.1"):
        metadata = pytorchjob.render(stage_job(load("small"), run_id=run_id))["metadata"]
        assert metadata["annotations"]["thaw/run-id"] == run_id
        for value in metadata["labels"].values():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?){1,63}", value) and len(value) <= 63
    assert metadata["labels"]["thaw/run"] == "ok.1"
    assert pytorchjob.label_value("r" * 64) != pytorchjob.label_value("r" * 65)


# https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/pytorch/envvar.go
def test_pods_have_the_environment_that_the_operator_injects() -> None:
    manifest = rendered("training.num_nodes=3", "training.nproc_per_node=2", "cluster.env={A: b}")
    pods = pytorchjob.pods(manifest, "127.0.0.1", 12345)
    assert [pod.replica for pod in pods] == ["master-0", "worker-0", "worker-1"]
    for node_rank, pod in enumerate(pods):
        assert pod.command == ("torchrun", "-m", "thaw.components.train", "gs://bucket/train-frozen/attempt-1/job.json")
        assert pod.env == {
            "A": "b",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "12345",
            "PET_MASTER_PORT": "12345",
            "WORLD_SIZE": "6",
            "RANK": str(node_rank),
            "PET_NODE_RANK": str(node_rank),
            "PET_NNODES": "3",
            "PET_NPROC_PER_NODE": "2",
        }


def test_what_the_operator_injects_wins_over_the_containers_own() -> None:
    manifest = rendered()
    for replica in manifest["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["env"] += [{"name": "RANK", "value": "7"}]
    assert [pod.env["RANK"] for pod in pytorchjob.pods(manifest, "127.0.0.1", 12345)] == ["0", "1"]


def test_the_port_gpus_and_deadline_are_read_from_the_manifest() -> None:
    manifest = rendered(*ON_A_CLUSTER)
    assert pytorchjob.given_master_port(manifest) == 29500
    assert pytorchjob.deadline_s(manifest) == 7200
    assert {pod.num_gpus for pod in pytorchjob.pods(manifest, "127.0.0.1", 1)} == {8}
    assert pytorchjob.given_master_port(rendered()) is None
