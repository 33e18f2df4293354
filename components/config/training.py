"""How a training step runs: its ranks, its reading, its checkpoints; and the cluster that it runs on."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from thaw.components.config.section import Section

DEFAULT_IMAGE = "thaw:latest"
Sharding = Literal["auto", "table_wise", "row_wise"]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]i?|Ki)?$")]
"""Of Kubernetes: "500m" or "4" of cpu, "16Gi" of memory."""

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""Of an object of Kubernetes: a DNS-1123 subdomain."""


_OPERATOR_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "PYTHONUNBUFFERED")
_REGISTRY = r"[a-zA-Z0-9.-]+(:[0-9]+)?"
_PATH = r"[a-z0-9._-]+(/[a-z0-9._-]+)*"
_TAG = r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}"
_DIGEST = r"sha256:[0-9a-f]{64}"


def _image(name: str) -> str:
    if not re.fullmatch(f"({_REGISTRY}/)?{_PATH}(:{_TAG}|(:{_TAG})?@{_DIGEST})", name):
        raise ValueError(
            f"{name!r} is neither name:tag nor name@sha256:digest, whose digest has 64 hex digits; "
            f"say which of the name's images it is"
        )
    return name


Image = Annotated[str, AfterValidator(_image)]
"""`name:tag`, or `name@sha256:<64 hex digits>`, which alone can't come to mean another image."""


class Training(Section):
    """Ranks, batches, reading, checkpoints."""

    global_batch_size: int = Field(ge=1)
    """Requests a step, over all ranks."""
    num_nodes: int = Field(default=2, ge=1)
    """Replicas of the PyTorchJob: one Master and the rest Workers."""
    nproc_per_node: int = Field(default=1, ge=1)
    """Ranks of each replica, one a GPU where device is cuda."""
    device: Literal["cpu", "cuda"] = "cpu"
    num_threads: int = Field(default=1, ge=1)
    """Threads of a rank (OMP_NUM_THREADS)."""
    num_workers: int = Field(default=0, ge=0)
    """Reader processes of a rank; 0 reads in the rank itself."""
    num_lanes: int = Field(default=8, ge=1)
    """Into how many streams the window is cut. A rank reads a share of the lanes, so there must be at least as many
    lanes as readers (ranks x workers). The order of the rows depends on this number, never on the number of ranks.
    Where it is a multiple of the readers and divides global_batch_size, all ranks get equal shares of each step. A
    reader holds a decoded row group for each of its lanes."""
    shuffle_rows: int = Field(default=65536, ge=1)
    """Requests that are shuffled together, over all lanes; also what the readers hold in memory."""
    shuffle: bool = True
    sharding: dict[str, Sharding] = {}
    """Pins a table's sharding; others are placed by TorchRec's planner."""
    staleness: Literal[0, 1] = 1
    """Updates that the tables' rows lack when a batch reads them. 1 is the semi-synchronous pipeline: gradients of the
    batch before and rows of the batch behind are exchanged beside the dense half. 0 is the synchronous loop. A frozen
    epoch is never stale; there 1 only has the rows looked up ahead."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1)
    """Checkpoints inside an epoch; None saves at its end alone."""
    log_every_steps: int = Field(default=20, ge=1)
    row_ledger: bool = False
    """Have every rank write the request ids that it trained or scored, epoch by epoch, under `ledger/`."""
    collective_timeout_s: int = Field(default=600, ge=1)
    """After this long without an answer a collective fails."""
    read_timeout_s: int = Field(default=120, ge=1)
    """After this long without an answer a read of the store fails."""

    @property
    def world_size(self) -> int:
        """Ranks of a training step."""
        return self.num_nodes * self.nproc_per_node

    @model_validator(mode="after")
    def _check(self) -> "Training":
        readers = self.world_size * max(1, self.num_workers)
        if self.num_lanes < readers:
            raise ValueError(
                f"training: num_lanes {self.num_lanes} is less than the {readers} readers "
                f"({self.num_nodes}x{self.nproc_per_node} ranks x {max(1, self.num_workers)})"
            )
        return self


class Evaluation(Section):
    """What the evaluate step measures."""

    batch_size: int = Field(default=4096, ge=1)
    """Requests scored at once, over all ranks."""
    num_train_requests: int = Field(default=2000, ge=1)
    """Requests of the window that are scored too, for the train-evaluation gap."""
    hit_k: int = Field(default=3, ge=1)
    num_calibration_bins: int = Field(default=15, ge=2)


class SecretKey(Section):
    """One value of a Kubernetes secret."""

    secret: Name
    key: str = Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)


class Cluster(Section):
    """What a PyTorchJob asks of the cluster. The local backend reads the same job and takes from it what it can use."""

    image: Image = DEFAULT_IMAGE
    """Image of every step and every replica."""
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)
    service_account: str | None = None
    cpu: Quantity | None = None
    """Of each replica: limit and request."""
    memory: Quantity | None = None
    """Of each replica: limit and request."""
    shm_size: Quantity = "2Gi"
    """Size of /dev/shm in each replica."""
    image_pull_secrets: tuple[Name, ...] = ()
    """Names of secrets in the namespace, for a registry that asks who pulls."""
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    """As in a pod spec."""
    env: dict[str, str] = {}
    """Set in every replica."""
    secret_env: dict[str, SecretKey] = {}
    """Set in every replica from a secret of the namespace; the value itself never travels."""
    priority_class: Name | None = None
    """PriorityClass of the pods."""
    queue: Name | None = None
    """Kueue LocalQueue of the namespace. The job is made suspended, and Kueue starts it when there is room."""
    gang: bool = False
    """Schedule all replicas or none; the operator must have been started with a gang scheduler."""
    poll_s: float = Field(default=10, gt=0)
    """Between two looks at a job."""
    start_timeout_s: float = Field(default=900, gt=0)
    """A job of which a replica does not run after this long is ended, and its step fails. Time in a queue is not
    counted."""
    queue_timeout_s: float = Field(default=24 * 3600, gt=0)
    """A job that its queue has not let in after this long is ended, and its step fails."""
    lease_timeout_s: float = Field(default=600, gt=0)
    """A job whose launcher is gone ends itself after this long; longer than a launcher's pod takes to start anew."""
    master_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the rendezvous. None: the operator's 23456 on a cluster, a free one on one machine."""
    deadline_s: int = Field(default=24 * 3600, ge=1)
    """A training job that is not done after this long is ended, and its step fails."""
    ttl_s: int = Field(default=24 * 3600, ge=3600)
    """A finished job stays this long, for its logs."""

    @model_validator(mode="after")
    def _check(self) -> "Cluster":
        for section, names in (("env", self.env), ("secret_env", self.secret_env)):
            for name in names:
                if name in _OPERATOR_VARIABLES or name.startswith("PET_"):
                    raise ValueError(
                        f"cluster.{section} sets {name}, which the training operator sets itself; leave it out"
                    )
        if twice := self.env.keys() & self.secret_env.keys():
            raise ValueError(f"cluster.env and cluster.secret_env both set {', '.join(sorted(twice))}; leave one out")
        return self
