"""Requests of the log as batches of jagged tensors."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Unpack

import numpy as np
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import PADDING_ID, REQUEST_KEYS, RequestBatch
from thaw.components.trainer.reading.blocks import Columns
from thaw.components.trainer.reading.columns import permute
from thaw.components.trainer.reading.lanes import Block
from thaw.components.trainer.reading.loader import EpochLoader, EpochOptions
from thaw.components.trainer.reading.parquet import RowGroups
from thaw.components.trainer.reading.request_columns import RequestSchema


class RequestLoader(EpochLoader[RequestBatch]):
    """One epoch of requests. Features of `id_counts`: user, history, candidates."""

    def __init__(
        self,
        config: RunConfig,
        files: Sequence[DataFile],
        rank: int,
        world_size: int,
        epoch: int,
        *,
        batch_size: int | None = None,
        **options: Unpack[EpochOptions],
    ) -> None:
        """Lay out the epoch; nothing is read yet.

        Args: as of EpochLoader; files are those of the manifest, in its order; batch_size None takes
            training.global_batch_size.
        """
        schema = RequestSchema(config.data, config.model.history_length)
        row_groups = RowGroups(files, config.training.read_timeout_s)
        super().__init__(
            config,
            schema,
            row_groups,
            partial(_cut, schema),
            rank,
            world_size,
            epoch,
            sizes=row_groups.sizes,
            batch_size=batch_size or config.training.global_batch_size,
            **options,
        )


def _cut(schema: RequestSchema, block: Block, parts: Sequence[Columns]) -> Iterator[RequestBatch]:
    """The batches of a block. All its rows are brought into their final order at once; a batch is a slice of that."""
    if not parts:
        yield from (_padding(schema, block.first_step + place) for place in range(len(block.rows_per_step)))
        return
    order = torch.from_numpy(block.order.astype(np.int32))
    rows = block.rows_per_step.tolist()
    lengths, ids, counts = _keyed(block, parts)
    num_candidates = counts[:, 2].tolist()

    def by_row(key: str) -> Iterator[torch.Tensor]:
        values = np.concatenate([part[key].values for part in parts])
        return _slices(torch.from_numpy(values[block.order]), rows)

    def by_value(key: str, of: str, num_values: list[int], dtype: type = np.int64) -> Iterator[torch.Tensor]:
        """Columns aligned with the values of another."""
        values: np.ndarray = np.concatenate([part[key].values for part in parts], dtype=dtype, casting="unsafe")
        width = values[0].size if len(values) else 1
        of_lengths = torch.from_numpy(np.concatenate([part[of].lengths for part in parts]) * width)
        _, ordered = permute(of_lengths, torch.from_numpy(values.reshape(-1)), order)
        return _slices(ordered.view(values.shape), num_values)

    def context(kind: str) -> dict[str, Iterator[torch.Tensor]]:
        named = {feature.name: f"context/{feature.name}" for feature in schema.data.context if feature.kind == kind}
        return {name: by_row(key) for name, key in named.items()}

    if "item_id" in parts[0]:
        item_ids = by_value("item_id", "candidates", num_candidates)
    else:  # the candidates are rows of the table as they are: each second slice of (user and history, candidates)
        halves = np.stack([counts[:, 0] + counts[:, 1], counts[:, 2]], axis=1)
        item_ids = itertools.islice(_slices(ids, halves.reshape(-1).tolist()), 1, None, 2)
    history = {key: by_value(key, "history", counts[:, 1].tolist()) for key in schema.aligned}
    categorical, numeric = context("categorical"), context("numeric")
    steps = zip(
        itertools.count(block.first_step),
        rows,
        num_candidates,
        by_row("request_id"),
        by_row("user_id"),
        item_ids,
        _slices(ids, counts.sum(axis=1).tolist()),
        _slices(lengths, (3 * block.rows_per_step).tolist()),
        counts.tolist(),
        by_value("labels", "candidates", num_candidates, np.float32),
    )
    for step, stride, num_rows, request_ids, user_ids, items, values, of_values, per_key, labels in steps:
        aligned = {key: next(of_steps) for key, of_steps in history.items()}
        batch = RequestBatch(
            step=step,
            num_requests=stride,
            num_rows=num_rows,
            request_ids=request_ids,
            user_ids=user_ids,
            item_ids=items,
            ids=KeyedJaggedTensor(_KEYS, values, lengths=of_values, stride=stride, length_per_key=per_key),
            labels=labels,
            history_action=aligned.get("history_action"),
            history_age_s=aligned.get("history_age_s"),
            categorical={name: next(of_steps) for name, of_steps in categorical.items()},
            numeric={name: next(of_steps) for name, of_steps in numeric.items()},
        )
        yield batch if stride else _padding(schema, step)


def _slices(values: torch.Tensor, sizes: list[int]) -> Iterator[torch.Tensor]:
    """Consecutive slices of a tensor, made by the hundred: cheaper than one by one; and thousands of living tensors
    would have Python's garbage collector look through all its objects again and again."""
    start = 0
    for first in range(0, len(sizes), 100):
        group = sizes[first : first + 100]
        stop = start + sum(group)
        yield from values[start:stop].split_with_sizes(group)
        start = stop


_KEYS = list(REQUEST_KEYS)


def _keyed(block: Block, parts: Sequence[Columns]) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Lengths and ids in the order of KeyedJaggedTensors: by step, in it by key, in it by row.

    Returns:
        Lengths [3 * rows], ids [values], and how many ids each step has of each key [steps, 3].
    """
    num_rows, rows = len(block.order), block.rows_per_step
    rows_before = np.concatenate([[0], np.cumsum(rows)])
    rows_of_step = np.repeat(rows, rows)
    place = np.arange(num_rows) + np.repeat(2 * rows_before[:-1], rows)  # of the user; history and candidates follow
    order = np.empty(3 * num_rows, np.int32)
    for key in range(3):
        order[place + key * rows_of_step] = block.order + key * num_rows
    lengths, ids = permute(
        torch.from_numpy(np.concatenate([part[key].lengths for key in REQUEST_KEYS for part in parts])),
        torch.from_numpy(np.concatenate([part[key].values for key in REQUEST_KEYS for part in parts])),
        torch.from_numpy(order),
    )
    ids_before = np.concatenate([[0], np.cumsum(lengths.numpy())])
    key_starts = 3 * rows_before[:-1, None] + np.arange(4) * rows[:, None]
    counts = np.diff(ids_before[key_starts], axis=1)
    return lengths, ids, counts


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
