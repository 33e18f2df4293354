"""What a training step tells its ranks: one JSON document, whose URI is the only argument of every replica."""

from typing import Any, Literal

from pydantic import Field, model_validator

from thaw.components.config.recipe import Policy
from thaw.components.config.section import Section

RESULT = "result.json"
"""In the attempt's folder: the figures, which rank 0 writes as its last act."""


class JobSpec(Section):
    """One job of the trainer."""

    kind: Literal["pretrain", "train", "score"]
    run_id: str
    stage: str
    job: str
    """Name of the PyTorchJob; ranks of another job are refused at the rendezvous."""
    config: dict[str, Any]
    """The run's configuration document."""
    window_uri: str
    """The window document, which pins every file."""
    output_uri: str
    """Folder of the attempt."""
    checkpoint_uri: str | None = None
    """The tables, or the whole model, to start from."""
    policy: Policy | None = None
    epoch: int = 0
    """Counted over the run's training stages from 0; with the seed it gives the order of the rows."""
    resume_uri: str | None = None
    """A checkpoint that an earlier attempt of the same stage left in mid-epoch."""
    lease_timeout_s: float | None = Field(default=None, gt=0)
    """After so long without a renewal of the lease beside `job.json`, rank 0 ends the job. None: there is no lease."""

    @model_validator(mode="after")
    def _check(self) -> "JobSpec":
        if (self.kind == "train") != (self.policy is not None):
            raise ValueError(f"job {self.job}: a policy belongs to kind train, and only there; kind is {self.kind}")
        if self.kind == "score" and self.checkpoint_uri is None:
            raise ValueError(f"job {self.job}: kind score needs a checkpoint_uri")
        return self
