"""The pods and services that training operator 1.9 makes of a PyTorchJob.

Source: https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/pytorch/envvar.go, master.go, elastic.go;
pkg/controller.v1/common/pod.go, service.go; pkg/apis/kubeflow.org/v1/pytorch_defaults.go. The init container that waits
for the Master's name is left out: it would have to be pulled.
"""

import copy
from collections.abc import Mapping
from typing import Any

PORT_NAME, PORT = "pytorchjob-port", 23456
_LABEL = "training.kubeflow.org"

Replicas = Mapping[str, Mapping[str, Any]]
"""By kind, with the defaults set."""


def with_defaults(job: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The replicas of a job, what they leave open filled in; Master first."""
    replicas = {}
    for kind in ("Master", "Worker"):
        if (given := job["spec"]["pytorchReplicaSpecs"].get(kind)) is None:
            continue
        replica = {"replicas": 1, "restartPolicy": "OnFailure"} | copy.deepcopy(given)
        for container in replica["template"]["spec"]["containers"]:
            ports = container.setdefault("ports", [])
            if container["name"] == "pytorch" and all(port.get("name") != PORT_NAME for port in ports):
                ports.append({"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"})
        replicas[kind] = replica
    return replicas


def labels(job: Mapping[str, Any], kind: str | None = None, index: int | None = None) -> dict[str, str]:
    """What tells the pods and services of a job, of a kind of its replicas, or of one replica."""
    found = {f"{_LABEL}/operator-name": "pytorchjob-controller", f"{_LABEL}/job-name": job["metadata"]["name"]}
    found |= {f"{_LABEL}/replica-type": kind.lower()} if kind is not None else {}
    return found | ({f"{_LABEL}/replica-index": str(index)} if index is not None else {})


def pod_of(job: Mapping[str, Any], replicas: Replicas, kind: str, index: int) -> dict[str, Any]:
    """The pod of a replica."""
    replica = replicas[kind]
    pod = copy.deepcopy(replica["template"])
    metadata = pod.setdefault("metadata", {})
    role = {f"{_LABEL}/job-role": "master"} if kind == "Master" or ("Master" not in replicas and index == 0) else {}
    metadata["labels"] = metadata.get("labels", {}) | labels(job, kind, index) | role
    metadata |= {"name": _name(job, kind, index), "ownerReferences": [_owner(job)]}
    policy = replica["restartPolicy"]
    pod["spec"]["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    variables = [{"name": name, "value": value} for name, value in _variables(job, replicas, kind, index).items()]
    for container in pod["spec"]["containers"]:
        container["env"] = [*container.get("env", ()), *variables]
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def service_of(job: Mapping[str, Any], replicas: Replicas, kind: str, index: int) -> dict[str, Any]:
    """The headless service by whose name a replica is found."""
    containers = replicas[kind]["template"]["spec"]["containers"]
    ports = next(container["ports"] for container in containers if container["name"] == "pytorch")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": _name(job, kind, index),
            "labels": labels(job, kind, index),
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels(job, kind, index),
            "ports": [{"name": port["name"], "port": port["containerPort"]} for port in ports],
        },
    }


def _name(job: Mapping[str, Any], kind: str, index: int) -> str:
    return f"{job['metadata']['name']}-{kind.lower()}-{index}"


def _owner(job: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _variables(job: Mapping[str, Any], replicas: Replicas, kind: str, index: int) -> dict[str, str]:
    spec = job["spec"]
    elastic = spec.get("elasticPolicy")
    num_replicas = sum(replica["replicas"] for replica in replicas.values())
    nproc_per_node = spec.get("nprocPerNode", "auto")
    variables = {"PYTHONUNBUFFERED": "1"}
    if elastic is None or "nProcPerNode" not in elastic:
        variables["PET_NPROC_PER_NODE"] = nproc_per_node
    if "Master" in replicas:
        address, port = _name(job, "Master", 0), str(_port(replicas["Master"]))
        num_processes = int(nproc_per_node) if nproc_per_node.isdigit() else 1
        node_rank = str(index if kind == "Master" else index + 1)
        variables |= {"MASTER_ADDR": address, "PET_MASTER_ADDR": address, "MASTER_PORT": port, "PET_MASTER_PORT": port}
        variables |= {"WORLD_SIZE": str(num_replicas * num_processes), "RANK": node_rank, "PET_NODE_RANK": node_rank}
    if elastic is None:
        return variables | {"PET_NNODES": str(num_replicas)}
    num_workers = replicas["Worker"]["replicas"]
    host = elastic.get("rdzvHost", _name(job, "Worker", 0))
    given = {
        "PET_NPROC_PER_NODE": elastic.get("nProcPerNode"),
        "PET_MAX_RESTARTS": elastic.get("maxRestarts"),
        "PET_RDZV_ID": elastic.get("rdzvId"),
        "PET_RDZV_CONF": ",".join(f"{pair['key']}={pair['value']}" for pair in elastic.get("rdzvConf", ())) or None,
        "PET_STANDALONE": "" if elastic.get("standalone") else None,
    }
    return {
        **variables,
        "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"),
        "PET_RDZV_ENDPOINT": f"{host}:{elastic.get('rdzvPort', _port(replicas['Worker']))}",
        "PET_NNODES": f"{elastic.get('minReplicas', num_workers)}:{elastic.get('maxReplicas', num_workers)}",
        **{name: str(value) for name, value in given.items() if value is not None},
    }


def _port(replica: Mapping[str, Any]) -> int:
    for container in replica["template"]["spec"]["containers"]:
        for port in container["ports"]:
            if port.get("name") == PORT_NAME:
                return port["containerPort"]
    raise ValueError(f"no container has the port {PORT_NAME}")
