"""What a run can cost at most."""

from collections.abc import Sequence
from typing import Any

GPU = "nvidia.com/gpu"


def cost_lines(manifests: Sequence[dict[str, Any]], num_retries: int) -> list[str]:
    """One line a job, and their sum: replicas, GPUs, and GPU-hours if each try ran until its deadline.

    Args:
        manifests: The PyTorchJobs.
        num_retries: How often Kubeflow tries a failed step again.
    """
    lines, total = [], 0.0
    num_tries = num_retries + 1
    for manifest in manifests:
        replicas = manifest["spec"]["pytorchReplicaSpecs"].values()
        num_pods = sum(replica["replicas"] for replica in replicas)
        num_gpus = sum(replica["replicas"] * _gpus(replica) for replica in replicas)
        hours = manifest["spec"]["runPolicy"]["activeDeadlineSeconds"] / 3600
        stage = manifest["metadata"]["labels"]["thaw/stage"]
        most = f"{hours:g} h x {num_tries} tries"
        if num_gpus:
            lines.append(
                f"{stage}: {num_pods} pods, {num_gpus} GPUs x {most} = {num_gpus * hours * num_tries:g} GPU-hours"
            )
            total += num_gpus * hours * num_tries
        else:
            lines.append(f"{stage}: {num_pods} pods, CPU alone, {most}")
    return [*lines, f"at most {total:g} GPU-hours" if total else "no GPU-hours: all jobs run on CPU"]


def _gpus(replica: dict[str, Any]) -> int:
    containers = replica["template"]["spec"]["containers"]
    return sum(int(container.get("resources", {}).get("limits", {}).get(GPU, 0)) for container in containers)
