"""Engagements as batches of (user, item) pairs."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from thaw.components.config import RunConfig
from thaw.components.config.data import Data
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import PAIR_KEYS, PairBatch
from thaw.components.trainer.reading.blocks import Columns
from thaw.components.trainer.reading.columns import Column, ColumnSpec, DataError, describe
from thaw.components.trainer.reading.ids import Counts, check, map_ids
from thaw.components.trainer.reading.lanes import Block
from thaw.components.trainer.reading.loader import EpochLoader, EpochOptions
from thaw.components.trainer.reading.parquet import RowGroups


class PairSchema:
    """Reads the engagements whose action counts. Keys of the columns: user, item, and `kept` after `map_ids`."""

    def __init__(self, data: Data) -> None:
        names = data.engagements
        self._tables = data.tables
        self._actions = names.actions
        self.action_column = names.action if names.actions else None
        self.specs = {"user": ColumnSpec(names.user_id, "integer"), "item": ColumnSpec(names.item_id, "integer")}

    def select(self, table: pa.Table, file: DataFile) -> pa.Table:
        """The rows whose action counts."""
        return table if self.action_column is None else table.filter(self.counted(table, file))

    def counted(self, table: pa.Table, file: DataFile) -> pa.ChunkedArray:
        """Which rows have an action that counts; null is none.

        Raises:
            DataError: the actions are no strings.
        """
        column = table.column(self.action_column)
        try:
            return pc.is_in(column.cast(pa.string()), pa.array(self._actions, pa.string()))
        except pa.ArrowException:
            raise DataError(
                f"{describe(file, str(self.action_column))} is {column.type}, and string is needed"
            ) from None

    def check(self, columns: Columns, file: DataFile) -> Columns:
        """Both columns.

        Raises:
            DataError: an id is no row of its table, and the table's policy is `error`.
        """
        for key in PAIR_KEYS:
            check(columns[key], key, self._tables[key], key, self.specs[key].column, file)
        return columns

    def map_ids(self, columns: Columns, counts: Counts) -> Columns:
        """Rows of the tables, and which pairs have both."""
        kept = np.ones(columns["user"].num_rows, bool)
        mapped = {}
        for key in PAIR_KEYS:
            rows, has_row = map_ids(columns[key], self._tables[key], key, counts)
            mapped[key] = Column(rows)
            if has_row is not None:
                kept &= has_row
        return mapped | {"kept": Column(kept)}


class PairLoader(EpochLoader[PairBatch]):
    """One epoch of the pairs whose action counts. Features of `id_counts`: user, item; a pair of which either id was
    dropped is in no batch."""

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
        """Lay out the epoch, for which the actions are read once: the pairs that count must be counted.

        Args: as of RequestLoader; batch_size None takes backbone.pretrain.global_batch_size.
        """
        if batch_size is None:
            if config.backbone.pretrain is None:
                raise ValueError("PairLoader: give a batch_size, as the configuration has no backbone.pretrain")
            batch_size = config.backbone.pretrain.global_batch_size
        timeout_s = config.training.read_timeout_s
        super().__init__(
            config,
            PairSchema(config.data),
            RowGroups(files, timeout_s),
            _cut,
            rank,
            world_size,
            epoch,
            sizes=count_pairs(config.data, tuple(files), timeout_s),
            batch_size=batch_size,
            **options,
        )


@lru_cache(maxsize=2)  # an epoch has a loader of its own, over the same files
def count_pairs(data: Data, files: tuple[DataFile, ...], read_timeout_s: int) -> tuple[int, ...]:
    """The pairs whose action counts, of each row group."""
    schema = PairSchema(data)
    row_groups = RowGroups(files, read_timeout_s)
    if schema.action_column is None:
        return tuple(row_groups.sizes)
    return tuple(
        pc.sum(schema.counted(row_groups.read(index, [schema.action_column]), row_groups.file(index))).as_py() or 0
        for index in range(len(row_groups))
    )


def _cut(block: Block, parts: Sequence[Columns]) -> Iterator[PairBatch]:
    """The batches of a block: slices of its rows in their final order."""
    num_steps = len(block.rows_per_step)
    rows = block.rows_per_step
    order = block.order
    if parts:
        user, item, kept = (np.concatenate([part[key].values for part in parts]) for key in ("user", "item", "kept"))
        kept = kept[order]
        step = np.repeat(np.arange(num_steps), rows)[kept]
        order, rows = order[kept], np.bincount(step, minlength=num_steps)
        ids = np.empty(2 * len(order), np.int64)
        place = np.arange(len(order)) + np.concatenate([[0], np.cumsum(rows)])[step]  # of the pair's user
        ids[place] = user[order]
        ids[place + rows[step]] = item[order]
    else:
        ids = np.empty(0, np.int64)
    values = torch.from_numpy(ids).split_with_sizes((2 * rows).tolist())
    for place, (num_pairs, of_both) in enumerate(zip(rows.tolist(), values)):
        stride = max(1, num_pairs)
        lengths = torch.full((2 * stride,), int(num_pairs > 0))
        keyed = KeyedJaggedTensor(_KEYS, of_both, lengths=lengths, stride=stride, length_per_key=[num_pairs, num_pairs])
        yield PairBatch(block.first_step + place, num_pairs, keyed)


_KEYS = list(PAIR_KEYS)
