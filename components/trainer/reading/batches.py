"""What the loaders yield: one rank's share of one global batch, as tensors.

Shapes: B requests (or pairs), N candidates over all B, M history items over all B, H heads.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

MISSING_ID = -(2**63)
"""Stands in `user_ids` where the log has null."""
PADDING_ID = -1
"""Request id of the one padding request that a rank without rows in a step gets."""

REQUEST_KEYS = ("user", "history", "candidates")
PAIR_KEYS = ("user", "item")

Batch = TypeVar("Batch", "RequestBatch", "PairBatch")


@dataclass
class RequestBatch:
    """A rank's requests of one step.

    A rank that has none gets one padding request: all its lengths are zero and it has no candidates, so that it weighs
    nothing in loss, metrics or ledger, and every collective still finds a batch of stride 1.
    """

    step: int
    """Step of the epoch, from 0."""
    num_requests: int
    """B, or 0 for the padding request."""
    num_rows: int
    """N: candidates, the rows of the loss."""
    request_ids: torch.Tensor
    """[B] int64."""
    user_ids: torch.Tensor
    """[B] int64, as the log has them; MISSING_ID where it has null."""
    item_ids: torch.Tensor
    """[N] int64, the candidates as the log has them."""
    ids: KeyedJaggedTensor
    """Rows of the tables, keys `user` (0 or 1 a request), `history` (most recent first), `candidates`; stride B."""
    labels: torch.Tensor
    """[N, H] float32, 0 or 1."""
    history_action: torch.Tensor | None
    """[M] int64, aligned with the values of `history`."""
    history_age_s: torch.Tensor | None
    """[M] int64, aligned with the values of `history`."""
    categorical: dict[str, torch.Tensor]
    """[B] int64 for each categorical context feature."""
    numeric: dict[str, torch.Tensor]
    """[B, width] float32 for each numeric context feature."""

    def to(self, device: torch.device, non_blocking: bool = False) -> "RequestBatch":
        """The same batch on a device."""
        return _moved(self, device, non_blocking)


@dataclass
class PairBatch:
    """A rank's (user, item) pairs of one step; one padding pair of zero lengths where it has none."""

    step: int
    """Step of the epoch, from 0."""
    num_pairs: int
    """B, or 0 for the padding pair."""
    ids: KeyedJaggedTensor
    """Rows of the tables, keys `user` and `item`, each of length 1; stride B."""

    def to(self, device: torch.device, non_blocking: bool = False) -> "PairBatch":
        """The same batch on a device."""
        return _moved(self, device, non_blocking)


def _moved(batch: Batch, device: torch.device, non_blocking: bool) -> Batch:
    def move(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: move(tensor) for name, tensor in value.items()}
        return value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value

    return replace(batch, **{field.name: move(getattr(batch, field.name)) for field in fields(batch)})
