"""Requests of the log as batches of jagged tensors."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import PADDING_ID, REQUEST_KEYS, RequestBatch
from thaw.components.trainer.reading.blocks import Columns, read_blocks
from thaw.components.trainer.reading.columns import permute
from thaw.components.trainer.reading.ids import Counts, by_feature
from thaw.components.trainer.reading.lanes import Block, EpochOrder
from thaw.components.trainer.reading.parquet import RowGroups
from thaw.components.trainer.reading.request_columns import RequestSchema


class RequestLoader:
    """One epoch of requests, this rank's share; every `iter` gives the whole epoch again."""

    num_steps: int
    """Steps of the whole epoch, those before start_step included."""
    num_rows: int
    """Requests of the whole epoch over all ranks, limit_rows considered."""
    id_counts: dict[str, dict[str, int]]
    """{feature: {"hashed" | "dropped" | "overflowed" | "missing": count}} of the rows that this rank read in the last
    iteration; complete when it is exhausted. Features: user, history, candidates. Zero counts are left out."""

    def __init__(
        self,
        config: RunConfig,
        files: Sequence[DataFile],
        rank: int,
        world_size: int,
        epoch: int,
        *,
        start_step: int = 0,
        limit_rows: int | None = None,
        shuffle: bool | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Lay out the epoch; nothing is read yet.

        Args:
            config: The run's document.
            files: The files of the manifest, in its order.
            rank: This rank.
            world_size: All ranks. Every one makes the same number of steps.
            epoch: With the seed it gives the order of the rows.
            start_step: The first step that is yielded; those before it are not read.
            limit_rows: Ends the epoch after this many rows of its order.
            shuffle: None takes training.shuffle.
            batch_size: Requests a step over all ranks; None takes training.global_batch_size.
        """
        training = config.training
        self._schema = RequestSchema(config.data, config.model.history_length)
        self._row_groups = RowGroups(files, training.read_timeout_s)
        self._order = EpochOrder(
            self._row_groups.sizes,
            seed=config.seed,
            epoch=epoch,
            batch_size=batch_size or training.global_batch_size,
            num_lanes=training.num_lanes,
            shuffle_rows=training.shuffle_rows,
            shuffle=training.shuffle if shuffle is None else shuffle,
            limit_rows=limit_rows,
        )
        self._place = {"rank": rank, "world_size": world_size, "num_workers": training.num_workers}
        self._order.check_start(start_step)
        self._start_step = start_step
        self.num_steps = self._order.num_steps
        self.num_rows = self._order.num_rows
        self.id_counts = {}

    def __iter__(self) -> Iterator[RequestBatch]:
        """The batches from start_step on."""
        counts: Counts = Counter()
        self.id_counts = {}
        blocks = read_blocks(
            self._schema, self._row_groups, self._order, start_step=self._start_step, counts=counts, **self._place
        )
        for block, columns in blocks:
            self.id_counts = by_feature(counts)
            yield from _cut(self._schema, block, columns)


def _cut(schema: RequestSchema, block: Block, columns: Columns) -> Iterator[RequestBatch]:
    """The batches of a block. All its rows are brought into their final order at once; a batch is a slice of that."""
    if not columns:
        yield from (_padding(schema, block.first_step + place) for place in range(len(block.rows_per_step)))
        return
    order = torch.from_numpy(block.order.astype(np.int32))
    rows = block.rows_per_step.tolist()
    lengths, ids, counts = _keyed(block, columns)
    num_history, num_candidates = counts[:, 1].tolist(), counts[:, 2].tolist()

    def by_row(key: str) -> Sequence[torch.Tensor]:
        return torch.from_numpy(columns[key].values[block.order]).split_with_sizes(rows)

    def by_value(key: str, of: str, num_values: list[int]) -> Sequence[torch.Tensor]:
        values, of_lengths = torch.from_numpy(columns[key].values), torch.from_numpy(columns[of].lengths)
        return permute(of_lengths, values, order, len(values)).split_with_sizes(num_values)

    def labels() -> Sequence[torch.Tensor]:
        values = torch.from_numpy(columns["labels"].values).float()
        of_lengths = torch.from_numpy(columns["candidates"].lengths) * values.shape[1]
        return (
            permute(of_lengths, values.view(-1), order, values.numel())
            .view(values.shape)
            .split_with_sizes(num_candidates)
        )

    def context(kind: str) -> dict[str, Sequence[torch.Tensor]]:
        return {
            feature.name: by_row(f"context/{feature.name}") for feature in schema.data.context if feature.kind == kind
        }

    history = {key: by_value(key, "history", num_history) for key in schema.aligned}
    categorical, numeric = context("categorical"), context("numeric")
    parts = zip(
        rows,
        num_candidates,
        by_row("request_id"),
        by_row("user_id"),
        by_value("item_id" if "item_id" in columns else "candidates", "candidates", num_candidates),
        ids.split_with_sizes(counts.sum(axis=1).tolist()),
        lengths.split_with_sizes((3 * block.rows_per_step).tolist()),
        counts.tolist(),
        labels(),
    )
    for place, (stride, num_rows, request_ids, user_ids, item_ids, values, of_values, per_key, of_heads) in enumerate(
        parts
    ):
        if not stride:
            yield _padding(schema, block.first_step + place)
            continue
        yield RequestBatch(
            step=block.first_step + place,
            num_requests=stride,
            num_rows=num_rows,
            request_ids=request_ids,
            user_ids=user_ids,
            item_ids=item_ids,
            ids=KeyedJaggedTensor(_KEYS, values, lengths=of_values, stride=stride, length_per_key=per_key),
            labels=of_heads,
            history_action=history["history_action"][place] if "history_action" in history else None,
            history_age_s=history["history_age_s"][place] if "history_age_s" in history else None,
            categorical={name: lists[place] for name, lists in categorical.items()},
            numeric={name: lists[place] for name, lists in numeric.items()},
        )


_KEYS = list(REQUEST_KEYS)


def _keyed(block: Block, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Lengths and ids in the order of KeyedJaggedTensors: by step, in it by key, in it by row.

    Returns:
        Lengths [3 * rows], ids [values], and how many ids each step has of each key [steps, 3].
    """
    num_rows = len(block.order)
    steps = len(block.rows_per_step)
    rows_before = np.concatenate([[0], np.cumsum(block.rows_per_step)])
    step = np.repeat(np.arange(steps), block.rows_per_step)
    place = np.arange(num_rows) + 2 * rows_before[step]  # of the row's user; history and candidates follow
    order = np.empty(3 * num_rows, np.int32)
    for key in range(3):
        order[place + key * block.rows_per_step[step]] = block.order + key * num_rows
    lengths = np.concatenate([columns[key].lengths for key in REQUEST_KEYS])
    ids = np.concatenate([columns[key].values for key in REQUEST_KEYS])
    ordered = lengths[order]
    ids_before = np.concatenate([[0], np.cumsum(ordered)])
    key_starts = 3 * rows_before[:-1, None] + np.arange(4) * block.rows_per_step[:, None]
    counts = np.diff(ids_before[key_starts], axis=1)
    ordered_ids = permute(torch.from_numpy(lengths), torch.from_numpy(ids), torch.from_numpy(order), len(ids))
    return torch.from_numpy(ordered), ordered_ids, counts


def _padding(schema: RequestSchema, step: int) -> RequestBatch:
    nothing = torch.zeros(0, dtype=torch.int64)
    context = schema.data.context
    return RequestBatch(
        step=step,
        num_requests=0,
        num_rows=0,
        request_ids=torch.full((1,), PADDING_ID),
        user_ids=torch.full((1,), PADDING_ID),
        item_ids=nothing,
        ids=KeyedJaggedTensor(
            _KEYS, nothing, lengths=torch.zeros(3, dtype=torch.int64), stride=1, length_per_key=[0, 0, 0]
        ),
        labels=torch.zeros(0, len(schema.data.heads)),
        history_action=nothing if "history_action" in schema.aligned else None,
        history_age_s=nothing if "history_age_s" in schema.aligned else None,
        categorical={
            feature.name: torch.zeros(1, dtype=torch.int64) for feature in context if feature.kind == "categorical"
        },
        numeric={feature.name: torch.zeros(1, feature.width) for feature in context if feature.kind == "numeric"},
    )
