"""The PyTorchJob of a training job, what training operator 1.9 makes of it, and how it says what became of it.

All that is known of the custom resource kubeflow.org/v1 PyTorchJob is here.

Source: kubeflow/trainer, branch release-1.9: pkg/apis/kubeflow.org/v1/pytorch_types.go, common_types.go;
pkg/controller.v1/pytorch/envvar.go, master.go; pkg/webhooks/pytorch; pkg/util/status.go.
"""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thaw.components.launcher.job import TrainingJob, short_hash

GROUP, VERSION, PLURAL = "kubeflow.org", "v1", "pytorchjobs"
COMMAND = ("torchrun", "-m", "thaw.components.train")
CONTAINER = "pytorch"
"""The one that the operator looks at, in each pod."""
JOB_LABEL = "training.kubeflow.org/job-name"
"""On every pod of a job."""
RUN_ID, SPEC_DIGEST, SPEC_URI = "thaw/run-id", "thaw/spec-digest", "thaw/spec-uri"
"""Annotations that say whose work a job is, and where it is recorded."""
MANAGED_BY, THAW = "app.kubernetes.io/managed-by", "thaw"
STAGE_LABEL, ATTEMPT_LABEL = "thaw/stage", "thaw/attempt"

_MAX_LABEL_LENGTH = 63
_PORT_NAME = "pytorchjob-port"
_GPU = "nvidia.com/gpu"
_QUEUE = "kueue.x-k8s.io/queue-name"


def render(job: TrainingJob) -> dict[str, Any]:
    """The complete PyTorchJob: what a cluster is sent, and what the local backend reads."""
    training, cluster = job.config.training, job.config.cluster
    annotations = {
        RUN_ID: job.spec.run_id,
        "thaw/pipeline": job.config.name,
        SPEC_DIGEST: job.spec_digest,
        SPEC_URI: job.spec_uri,
    }
    replicas = {"Master": _replica(job, 1)}
    if training.num_nodes > 1:
        replicas["Worker"] = _replica(job, training.num_nodes - 1)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": job.name,
            "namespace": cluster.namespace,
            "labels": _labels(job) | ({_QUEUE: cluster.queue} if cluster.queue is not None else {}),
            "annotations": annotations,
        },
        "spec": {
            # A string in the CRD. torchrun's `auto` would be one rank a core on a machine without GPU.
            "nprocPerNode": str(training.nproc_per_node),
            "runPolicy": _run_policy(job),
            "pytorchReplicaSpecs": replicas,
        },
    }


def label_value(text: str) -> str:
    """A valid label value that stands for a text: the text where it is one, else its beginning and a hash."""
    if len(text) <= _MAX_LABEL_LENGTH and re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", text):
        return text
    beginning = re.sub(r"[^-A-Za-z0-9_.]", "-", text).lstrip("-_.")
    return f"{beginning[: _MAX_LABEL_LENGTH - 11]}-{short_hash(text)}".lstrip("-")


def _labels(job: TrainingJob) -> dict[str, str]:
    return {
        MANAGED_BY: THAW,
        "thaw/run": label_value(job.spec.run_id),
        STAGE_LABEL: label_value(job.spec.stage),
        ATTEMPT_LABEL: str(job.attempt),
        "thaw/spec": job.spec_digest[:16],
    }


def _run_policy(job: TrainingJob) -> dict[str, Any]:
    cluster = job.config.cluster
    policy: dict[str, Any] = {
        # A failed replica's pod stays for its log; those that still run give their GPUs back.
        "cleanPodPolicy": "Running",
        "ttlSecondsAfterFinished": cluster.ttl_s,
        # The operator looks at it only when something happens to the job: the launcher has a clock of its own.
        "activeDeadlineSeconds": cluster.deadline_s,
        # Kueue takes it back when there is room. False is the CRD's default; said, so that the server hands back what
        # it was sent.
        "suspend": cluster.queue is not None,
    }
    if cluster.gang:
        policy["schedulingPolicy"] = {"minAvailable": job.config.training.num_nodes}
        if cluster.priority_class is not None:
            policy["schedulingPolicy"]["priorityClass"] = cluster.priority_class
    return policy


def _replica(job: TrainingJob, num_replicas: int) -> dict[str, Any]:
    cluster = job.config.cluster
    pod: dict[str, Any] = {
        "containers": [_container(job)],
        # The default /dev/shm of a container has 64 MB: too little for loader workers and NCCL.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": cluster.shm_size}}],
    }
    if cluster.service_account is not None:
        pod["serviceAccountName"] = cluster.service_account
    if cluster.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in cluster.image_pull_secrets]
    if cluster.priority_class is not None:
        pod["priorityClassName"] = cluster.priority_class
    if cluster.node_selector:
        pod["nodeSelector"] = dict(cluster.node_selector)
    if cluster.tolerations:
        pod["tolerations"] = [dict(toleration) for toleration in cluster.tolerations]
    # A sidecar would cut the ranks' connections. Older Istio reads the annotation, newer the label.
    sidecar = {"sidecar.istio.io/inject": "false"}
    return {
        "replicas": num_replicas,
        # Fail fast: a restarted rank alone can't rejoin the others. The step is tried again as a whole.
        "restartPolicy": "Never",
        "template": {"metadata": {"labels": _labels(job) | sidecar, "annotations": sidecar.copy()}, "spec": pod},
    }


def _container(job: TrainingJob) -> dict[str, Any]:
    training, cluster = job.config.training, job.config.cluster
    environment = {"OMP_NUM_THREADS": str(training.num_threads), **cluster.env}
    secrets = {
        name: {"secretKeyRef": {"name": source.secret, "key": source.key}}
        for name, source in cluster.secret_env.items()
    }
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": cluster.image,
        "command": list(COMMAND),
        "args": [job.spec_uri],
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            *({"name": name, "valueFrom": source} for name, source in secrets.items()),
        ],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    requests = {name: value for name in ("cpu", "memory") if (value := getattr(cluster, name)) is not None}
    gpus = {_GPU: training.nproc_per_node} if training.device == "cuda" else {}
    if requests or gpus:
        container["resources"] = {"limits": requests | gpus}
        if requests:
            container["resources"]["requests"] = requests.copy()
    if cluster.master_port is not None:
        container["ports"] = [{"name": _PORT_NAME, "containerPort": cluster.master_port, "protocol": "TCP"}]
    return container


@dataclass(frozen=True)
class Pod:
    """A pod as the operator makes it of a PyTorchJob, as far as a process is concerned."""

    replica: str
    """`master-0`, `worker-0`, `worker-1`, ...: the pod's name without the job's."""
    command: tuple[str, ...]
    env: dict[str, str]
    """The container's own variables, those of secrets excepted, and those that the operator injects, which come last
    and win."""
    num_gpus: int


def pods(manifest: Mapping[str, Any], master_addr: str, master_port: int) -> list[Pod]:
    """The pods of a PyTorchJob with a Master and without elasticPolicy, Master first.

    Args:
        manifest: The PyTorchJob.
        master_addr: What reaches the Master's pod.
        master_port: A port of it for the rendezvous.
    """
    spec = manifest["spec"]
    replicas = [
        (f"{kind.lower()}-{index}", replica_spec["template"]["spec"]["containers"][0])
        for kind in ("Master", "Worker")
        if (replica_spec := spec["pytorchReplicaSpecs"].get(kind))
        for index in range(replica_spec["replicas"])
    ]
    nproc_per_node = spec["nprocPerNode"]
    injected = {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": nproc_per_node,
        "MASTER_ADDR": master_addr,
        "PET_MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "PET_MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(replicas) * int(nproc_per_node)),
        "PET_NNODES": str(len(replicas)),
    }
    return [
        Pod(
            replica=replica,
            command=(*container["command"], *container["args"]),
            env={
                **{variable["name"]: variable["value"] for variable in container["env"] if "value" in variable},
                **injected,
                # The rank of the node, not that of a process: torchrun gives each of its processes a RANK.
                "RANK": str(node_rank),
                "PET_NODE_RANK": str(node_rank),
            },
            num_gpus=int(container.get("resources", {}).get("limits", {}).get(_GPU, 0)),
        )
        for node_rank, (replica, container) in enumerate(replicas)
    ]


def given_master_port(manifest: Mapping[str, Any]) -> int | None:
    """The port of the rendezvous, where the PyTorchJob names one; else the operator takes 23456."""
    container = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    named = (port["containerPort"] for port in container.get("ports", ()) if port["name"] == _PORT_NAME)
    return next(named, None)


def deadline_s(manifest: Mapping[str, Any]) -> int:
    """After how many seconds the job is to be ended."""
    return int(manifest["spec"]["runPolicy"]["activeDeadlineSeconds"])


@dataclass(frozen=True)
class JobState:
    """What a PyTorchJob's status says, its conditions read by type and status wherever they stand in the list."""

    succeeded: bool
    failed: bool
    """Once true nothing changes any more."""
    suspended: bool
    queued: bool
    """Suspended, and a queue is to let it in."""
    started: bool
    """Replicas run, or are being started again."""
    last_condition: str
    """In words; of those that hold."""
    active_since: datetime.datetime | None
    """When the operator began with it, or, after it had been suspended, began anew."""
    failed_kinds: frozenset[str] = frozenset()
    """`master`, `worker`: of the replicas that the operator counts as failed."""


def state(job: Mapping[str, Any]) -> JobState:
    """What became of a PyTorchJob so far. Before the operator has seen it, it has no status at all."""
    status = job.get("status") or {}
    conditions = status.get("conditions") or []
    true = {str(condition.get("type")): condition for condition in conditions if condition.get("status") == "True"}
    suspend = (job["spec"].get("runPolicy") or {}).get("suspend")
    last = next(reversed(true.values()), None)
    has_queue = _QUEUE in (job["metadata"].get("labels") or {})
    # One that its queue has let in has the condition until the operator looks at it.
    suspended = bool(suspend) or ("Suspended" in true and not (has_queue and suspend is False))
    begun = status.get("startTime") or (None if has_queue else job["metadata"].get("creationTimestamp"))
    return JobState(
        succeeded="Succeeded" in true,
        failed="Failed" in true,
        suspended=suspended,
        queued=suspended and has_queue,
        started=not suspended and not true.keys().isdisjoint({"Running", "Restarting"}),
        last_condition=f"last condition {last.get('type')}: {last.get('message')}" if last else "no condition",
        active_since=datetime.datetime.fromisoformat(begun) if begun else None,
        failed_kinds=frozenset(
            kind.lower()
            for kind, count in (status.get("replicaStatuses") or {}).items()
            if count and count.get("failed")
        ),
    )


def replica_names(manifest: Mapping[str, Any]) -> list[str]:
    """The replicas of a PyTorchJob, Master first. A replica's pod is `<job>-<replica>`."""
    return [
        f"{kind.lower()}-{index}"
        for kind in ("Master", "Worker")
        if (replica := manifest["spec"]["pytorchReplicaSpecs"].get(kind))
        for index in range(replica["replicas"])
    ]
