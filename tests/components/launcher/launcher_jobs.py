"""Jobs for the tests: those of the training stages, and PyTorchJobs with another command in their replicas."""

from typing import Any

from thaw.components.config import RunConfig, load
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.job import TrainingJob, training_job

STAGES: dict[str, dict[str, Any]] = {
    "prepare-backbone": {"kind": "pretrain"},
    "train-frozen": {"kind": "train", "policy": "frozen", "epoch": 0, "checkpoint_uri": "gs://bucket/backbone"},
    "train-cotrain": {"kind": "train", "policy": "cotrain", "epoch": 1, "checkpoint_uri": "gs://bucket/model"},
    "evaluate": {"kind": "score", "checkpoint_uri": "gs://bucket/model"},
}

ON_A_CLUSTER = (
    "training.device=cuda",
    "training.num_nodes=8",
    "training.nproc_per_node=8",
    "training.num_lanes=64",
    "training.num_threads=4",
    f"cluster.image=registry.example/thaw@sha256:{'0123' * 16}",
    "cluster.namespace=team-ranking",
    "cluster.service_account=trainer",
    "cluster.cpu='64'",
    "cluster.memory=512Gi",
    "cluster.shm_size=64Gi",
    "cluster.node_selector={pool: h200}",
    "cluster.tolerations=[{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]",
    "cluster.env={NCCL_DEBUG: WARN}",
    "cluster.secret_env={HF_TOKEN: {secret: hub, key: token}}",
    "cluster.image_pull_secrets=[registry]",
    "cluster.priority_class=daily",
    "cluster.queue=ranking",
    "cluster.gang=true",
    "cluster.master_port=29500",
    "cluster.deadline_s=7200",
    "cluster.ttl_s=3600",
)
"""Overrides that use all that the configuration can ask of a cluster."""


def stage_job(
    config: RunConfig, stage: str = "train-frozen", attempt: int = 1, run_id: str = "small-1", **changes: Any
) -> TrainingJob:
    """The job of one stage."""
    spec = {
        "window_uri": "gs://bucket/window.json",
        "output_uri": f"gs://bucket/{stage}/attempt-{attempt}",
        **STAGES[stage],
        **changes,
    }
    return training_job(config, attempt, run_id=run_id, stage=stage, **spec)


def manifest_of(command: list[str], *overrides: str) -> dict[str, Any]:
    """A PyTorchJob whose replicas run a command of ours; `overrides` change the configuration."""
    manifest = pytorchjob.render(stage_job(load("small", overrides)))
    for replica in manifest["spec"]["pytorchReplicaSpecs"].values():
        container = replica["template"]["spec"]["containers"][0]
        container["command"], container["args"] = command[:1], command[1:]
    return manifest
