"""What is trained and how: the model, the backbone, the recipe."""

from typing import Literal

from pydantic import Field, model_validator

from thaw.components.config.section import Section


class Contrastive(Section):
    """In-batch contrastive loss between the user tower and the item tower, over the engaged pairs of the whole
    global batch, corrected by log q."""

    weight: float = Field(default=0.1, ge=0)
    temperature: float = Field(default=0.1, gt=0)


class Model(Section):
    """Sizes of the ranker."""

    dim: int = Field(default=32, ge=4)
    """Columns of every table and width of the transformers."""
    history_length: int = Field(default=16, ge=0)
    """At most this many items of the history are read, the most recent."""
    num_layers: int = Field(default=1, ge=1)
    """Transformer layers over the history."""
    num_heads: int = Field(default=2, ge=1)
    """Attention heads of each transformer."""
    num_content_layers: int = Field(default=1, ge=1)
    """Transformer layers of the content encoder."""
    hidden_sizes: tuple[int, ...] = (128, 64)
    """Widths of the head MLP's hidden layers."""
    contrastive: Contrastive = Contrastive()

    @model_validator(mode="after")
    def _check(self) -> "Model":
        if self.dim % self.num_heads:
            raise ValueError(f"model: dim {self.dim} is no multiple of num_heads {self.num_heads}")
        return self


class Pretrain(Section):
    """Pretrain the backbone here: an ID-only two-tower InfoNCE over the engagement days before the window."""

    num_days: int = Field(ge=1)
    """Engagement days read; they end the day before the window."""
    max_missing_days: int = Field(default=0, ge=0)
    num_epochs: int = Field(default=3, ge=1)
    global_batch_size: int = Field(default=512, ge=2)
    """Pairs a step, over all ranks; all others of the step are negatives."""
    table_lr: float = Field(default=0.05, gt=0)
    temperature: float = Field(default=0.1, gt=0)


class Fetch(Section):
    """Fetch a published backbone: one by URI, or the newest under a prefix."""

    uri: str | None = Field(default=None, min_length=1)
    prefix_uri: str | None = Field(default=None, min_length=1)
    max_age_days: int = Field(default=14, ge=0)
    """Largest number of days between the day through which the backbone was trained and D."""
    allow_window_days: bool = False
    """Accept a backbone that saw days of the window. Recorded in the stage's manifest. D or later is refused always."""

    @model_validator(mode="after")
    def _check(self) -> "Fetch":
        if (self.uri is None) == (self.prefix_uri is None):
            raise ValueError("backbone.fetch: name either uri or prefix_uri")
        return self


class Backbone(Section):
    """Where the pretrained tables come from, pretrained here or fetched, and where a run of the backbone pipeline puts
    them."""

    pretrain: Pretrain | None = None
    fetch: Fetch | None = None
    publish_prefix_uri: str | None = Field(default=None, min_length=1)
    """The backbone pipeline publishes as `<publish_prefix_uri>/<run id>`, where others fetch it: their
    `backbone.fetch.prefix_uri`. Nothing else reads this key."""

    @model_validator(mode="after")
    def _check(self) -> "Backbone":
        if (self.pretrain is None) == (self.fetch is None):
            raise ValueError("backbone: give either pretrain or fetch")
        return self


Policy = Literal["frozen", "cotrain"]


class Recipe(Section):
    """The timing: which epoch freezes the tables and which trains them along."""

    policies: tuple[Policy, ...] = Field(default=("frozen", "cotrain"), min_length=1, max_length=2)
    """One epoch each. (frozen, cotrain) is the delayed update."""
    table_optimizer: Literal["rowwise_adagrad", "sgd"] = "rowwise_adagrad"
    """Fused into the backward pass by FBGEMM."""
    table_lr: float = Field(default=0.03, gt=0)
    table_momentum: float = Field(default=0.0, ge=0, lt=1)
    """No fused optimizer that is offered here has one, and each would ignore it: anything but 0 is an error."""
    table_weight_decay: float = Field(default=0.0, ge=0)
    """L2, on the rows that a batch looks up. Row-wise Adagrad on CUDA alone; elsewhere it is an error."""
    dense_optimizer: Literal["adam", "sgd"] = "adam"
    dense_lr: float = Field(default=2e-3, gt=0)
