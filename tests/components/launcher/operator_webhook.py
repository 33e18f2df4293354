"""The rules of training operator 1.9's webhook for PyTorchJobs, which an API server alone doesn't know.

Written from https://github.com/kubeflow/trainer/blob/release-1.9/pkg/webhooks/pytorch/pytorchjob_webhook.go, apart from
the code that renders the job.
"""

import re
from typing import Any


def faults(job: dict[str, Any]) -> list[str]:
    """What the webhook would refuse the job for."""
    found = []
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"]) or len(job["metadata"]["name"]) > 63:
        found.append(f"metadata.name {job['metadata']['name']!r} is not a DNS-1035 label")
    spec = job["spec"]
    if spec.get("runPolicy", {}).get("managedBy", "kubeflow.org/training-operator") not in (
        "kubeflow.org/training-operator",
        "kueue.x-k8s.io/multikueue",
    ):
        found.append("spec.runPolicy.managedBy is none of the two")
    elastic = spec.get("elasticPolicy")
    if elastic is not None and "Worker" not in spec.get("pytorchReplicaSpecs", {}):
        found.append("spec.elasticPolicy needs a Worker")
    if elastic is not None and "nProcPerNode" in elastic and "nprocPerNode" in spec:
        found.append("spec.elasticPolicy.nProcPerNode and spec.nprocPerNode exclude each other")
    if not spec.get("pytorchReplicaSpecs"):
        found.append("spec.pytorchReplicaSpecs is missing")
    for kind, replica in spec.get("pytorchReplicaSpecs", {}).items():
        where = f"spec.pytorchReplicaSpecs.{kind}"
        if kind not in ("Master", "Worker"):
            found.append(f"{where} is neither Master nor Worker")
        if kind == "Master" and replica.get("replicas", 1) != 1:
            found.append(f"{where}.replicas is not 1")
        if kind == "Worker" and replica.get("replicas", 1) < 1:
            found.append(f"{where}.replicas is less than 1")
        containers = replica["template"]["spec"].get("containers", [])
        if not containers:
            found.append(f"{where} has no container")
        if any(not container.get("image") for container in containers):
            found.append(f"{where} has a container without image")
        if not any(container["name"] == "pytorch" for container in containers):
            found.append(f"{where} has no container named pytorch")
    return found
