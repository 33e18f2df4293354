"""What the ranker needs of a batch beyond what the reader yields, made on the host and moved to the device at once.

Shapes, besides those of reading/batches.py:
    U  distinct candidate items of the batch    K  engaged pairs of the batch
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torchrec import KeyedJaggedTensor

from thaw.components.config import RunConfig
from thaw.components.trainer.layers import age_bucket
from thaw.components.trainer.reading import ItemContent, PairBatch, RequestBatch


@dataclass(frozen=True)
class Content:
    """Content of the distinct candidate items, so that each is encoded once."""

    patches: torch.Tensor | None
    """[U, P, F] float32."""
    tokens: torch.Tensor | None
    """[U, T] int64."""
    token_mask: torch.Tensor | None
    """[U, T] bool."""
    present: torch.Tensor
    """[U] bool: whether the item has content."""
    item_index: torch.Tensor
    """[N] int64: which of the U items each candidate is."""


@dataclass(frozen=True)
class Pairs:
    """The candidates that were engaged with: positives of the contrastive loss."""

    row_index: torch.Tensor
    """[K] int64: which of the N candidates each is."""
    keys: torch.Tensor
    """[K, 2] int64: user id as the log has it, row of the item table."""
    log_q: torch.Tensor
    """[K] float32: log of the item's share of the window's candidates."""


@dataclass(frozen=True)
class RankingBatch:
    """One rank's share of a step, on the device except for `source`."""

    source: RequestBatch
    """As read, on the host."""
    ids: KeyedJaggedTensor
    labels: torch.Tensor
    """[N, H] float32, 0 or 1."""
    request_index: torch.Tensor
    """[N] int64: which of the B requests each candidate belongs to."""
    slot_index: torch.Tensor
    """[N] int64: where each candidate stands in [B, max_candidates], flattened."""
    max_candidates: int
    """Most candidates that a request of the batch has; at least 1."""
    history_action: torch.Tensor | None
    """[M] int64."""
    history_age: torch.Tensor | None
    """[M] int64: bucket of the age."""
    categorical: dict[str, torch.Tensor]
    """[B] int64 each."""
    numeric: dict[str, torch.Tensor]
    """[B, width] float32 each."""
    content: Content | None
    pairs: Pairs | None

    @property
    def num_pairs(self) -> int:
        """K."""
        return 0 if self.pairs is None else len(self.pairs.row_index)


class Preparation:
    """Turns what the reader yields into ranking batches on a device."""

    def __init__(
        self,
        config: RunConfig,
        device: torch.device,
        items: ItemContent | None = None,
        item_log_q: torch.Tensor | None = None,
    ) -> None:
        """Keep what every batch needs.

        Args:
            config: the run's document.
            device: where the model is.
            items: content by row of the item table, on the host; None where the data has none.
            item_log_q: [rows of the item table] float32; None where no contrastive loss is computed.
        """
        self._device = device
        self._items = items
        self._item_log_q = item_log_q
        self._engaged_H = torch.tensor([head.engagement for head in config.data.heads])

    def __call__(self, batch: RequestBatch) -> RankingBatch:
        """The batch, ready for the model."""
        move = self._move
        lengths_B = batch.ids["candidates"].lengths().long()
        request_N = torch.repeat_interleave(lengths_B, output_size=batch.num_rows)
        max_candidates = max(1, int(lengths_B.max()))
        shift_B = torch.arange(len(lengths_B)) * max_candidates - (lengths_B.cumsum(0) - lengths_B)
        slot_N = torch.arange(batch.num_rows) + shift_B.index_select(0, request_N)
        candidates_N = batch.ids["candidates"].values()
        age_M = batch.history_age_s
        return RankingBatch(
            source=batch,
            ids=_ids_on(self._device, batch.ids),
            labels=move(batch.labels),
            request_index=move(request_N),
            slot_index=move(slot_N),
            max_candidates=max_candidates,
            history_action=None if batch.history_action is None else move(batch.history_action),
            history_age=None if age_M is None else move(age_bucket(age_M)),
            categorical={name: move(value) for name, value in batch.categorical.items()},
            numeric={name: move(value) for name, value in batch.numeric.items()},
            content=None if self._items is None else self._content(self._items, candidates_N),
            pairs=None if self._item_log_q is None else self._pairs(self._item_log_q, batch, candidates_N, request_N),
        )

    def over(self, loader: Iterable[RequestBatch]) -> Iterator[RankingBatch]:
        """The batches of a loader, prepared as they come."""
        return map(self, loader)

    def _content(self, items: ItemContent, candidates_N: torch.Tensor) -> Content:
        item_U, index_N = candidates_N.unique(return_inverse=True)

        def of(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else self._move(tensor.index_select(0, item_U))

        return Content(
            patches=of(items.patches),
            tokens=of(items.tokens),
            token_mask=of(items.token_mask),
            present=self._move(items.present.index_select(0, item_U)),
            item_index=self._move(index_N),
        )

    def _pairs(
        self, item_log_q: torch.Tensor, batch: RequestBatch, candidates_N: torch.Tensor, request_N: torch.Tensor
    ) -> Pairs:
        row_K = (batch.labels[:, self._engaged_H] > 0).any(1).nonzero().squeeze(1)
        item_K = candidates_N.index_select(0, row_K)
        user_K = batch.user_ids.index_select(0, request_N.index_select(0, row_K))
        return Pairs(
            row_index=self._move(row_K),
            keys=self._move(torch.stack([user_K, item_K], 1)),
            log_q=self._move(item_log_q.index_select(0, item_K)),
        )

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._device.type == "cpu":
            return tensor
        # From pinned memory the copy runs beside the kernels of the step before.
        return tensor.pin_memory().to(self._device, non_blocking=True)


def pairs_on(device: torch.device, loader: Iterable[PairBatch]) -> Iterator[PairBatch]:
    """The batches of a loader, their ids on a device."""
    return (replace(batch, ids=_ids_on(device, batch.ids)) for batch in loader)


def _ids_on(device: torch.device, ids: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return ids if device.type == "cpu" else ids.pin_memory().to(device, non_blocking=True)
