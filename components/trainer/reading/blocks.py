"""Blocks of rows, read in the rank itself or in loader workers."""

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.columns import Column, ColumnSpec, DataError, concatenate, decode
from thaw.components.trainer.reading.ids import Counts
from thaw.components.trainer.reading.lanes import Block, EpochOrder
from thaw.components.trainer.reading.parquet import ReadError, RowGroups

Columns = dict[str, Column]
"""Columns of the same rows by what they are to us (`user`, `labels`), not by their names in the files."""


class Schema(Protocol):
    """What is read of a row, and what must hold of it."""

    @property
    def specs(self) -> Mapping[str, ColumnSpec]:
        """The columns to read."""

    @property
    def action_column(self) -> str | None:
        """Read too where `select` needs it."""

    def select(self, table: pa.Table, file: DataFile) -> pa.Table:
        """The rows that count, of a row group."""

    def check(self, columns: Columns, file: DataFile) -> Columns:
        """The columns of a row group in their final form; refuses what the configuration does not allow."""

    def map_ids(self, columns: Columns, counts: Counts) -> Columns:
        """The columns with ids mapped to rows of their tables; counts what was not such a row."""


def read_group(schema: Schema, row_groups: RowGroups, index: int) -> Columns:
    """The checked columns of one row group."""
    file = row_groups.file(index)
    names = {spec.column for spec in schema.specs.values()}
    if schema.action_column is not None:
        names.add(schema.action_column)
    table = schema.select(row_groups.read(index, sorted(names)), file)
    columns = {key: decode(table.column(spec.column), spec, file) for key, spec in schema.specs.items()}
    return schema.check(columns, file)


class BlockReader:
    """Reads the blocks of some lanes, one after the other; a row group on their way is decoded once."""

    def __init__(self, schema: Schema, row_groups: RowGroups) -> None:
        self._schema = schema
        self._row_groups = row_groups
        self._decoded: dict[int, Columns] = {}

    def read(self, block: Block) -> tuple[list[Columns], Counts]:
        """The rows used of a block, in the order of its pieces, and what became of their ids.

        They come in parts that share memory with the decoded row groups: who brings them into the order of the batches
        must copy them anyway.
        """
        counts: Counts = Counter()
        if not len(block.order):
            return [], counts
        needed = {piece.row_group for piece in block.pieces}
        self._decoded = {index: columns for index, columns in self._decoded.items() if index in needed}
        for index in sorted(needed - self._decoded.keys()):
            self._decoded[index] = read_group(self._schema, self._row_groups, index)
        parts = [
            {key: column.slice(piece.start, piece.stop) for key, column in self._decoded[piece.row_group].items()}
            for piece in block.pieces
        ]
        if block.used is not None:
            parts = [{key: concatenate([part[key] for part in parts]).take(block.used) for key in parts[0]}]
        return [self._schema.map_ids(part, counts) for part in parts], counts


def read_blocks(
    schema: Schema,
    row_groups: RowGroups,
    order: EpochOrder,
    *,
    rank: int,
    world_size: int,
    num_workers: int,
    start_step: int,
    counts: Counts,
) -> Iterator[tuple[Block, list[Columns]]]:
    """Each block from the one of start_step on: its layout for this rank, and its rows in parts (none without rows).

    Args:
        schema: What is read.
        row_groups: Where it is read.
        order: Of the epoch.
        rank: This rank.
        world_size: All ranks.
        num_workers: Processes that read; 0 reads here.
        start_step: The first step wanted.
        counts: Gets what became of the ids.
    """
    lanes = order.lanes(rank, world_size)
    blocks = (order.block(index, lanes, start_step) for index in range(order.block_of(start_step), order.num_blocks))
    if num_workers == 0:
        reader = BlockReader(schema, row_groups)
        for block in blocks:
            parts, found = reader.read(block)
            counts.update(found)
            yield block, parts
        return
    shares = iter(_worker_pool(_WorkerShare(schema, row_groups, order, rank, world_size, start_step), num_workers))
    try:
        for block in blocks:
            parts = []
            for _ in range(num_workers):  # the pool goes round its workers, and their lanes follow one another
                share = next(shares)
                if isinstance(share, Exception):
                    raise share
                of_worker, found = share
                counts.update(found)
                parts += of_worker
            yield block, parts
    finally:
        del shares  # ends the workers now, though the traceback of an error may hold this frame for longer


class _WorkerShare(IterableDataset):
    """In a worker: what its lanes hold of each block, or the error that ended the reading."""

    def __init__(
        self, schema: Schema, row_groups: RowGroups, order: EpochOrder, rank: int, world_size: int, start_step: int
    ) -> None:
        self._reader = BlockReader(schema, row_groups)
        self._order = order
        self._place = (rank, world_size)
        self._start_step = start_step

    def __iter__(self) -> Iterator[tuple[list[Columns], Counts] | Exception]:
        worker = get_worker_info()
        assert worker is not None
        lanes = self._order.lanes(*self._place, worker.id, worker.num_workers)
        for index in range(self._order.block_of(self._start_step), self._order.num_blocks):
            try:
                yield self._reader.read(self._order.block(index, lanes, self._start_step))
            except (DataError, ReadError) as error:
                yield type(error)(f"loader worker {worker.id}: {error}")
                return


def _worker_pool(share: _WorkerShare, num_workers: int) -> DataLoader:
    """Fresh workers for one iteration.

    They are forked, though the rank has threads of gloo, Arrow and fsspec by then. A worker uses none of theirs: it
    opens its own filesystems (whose event loop fsspec forgets in a child), Arrow makes new pools after a fork, and
    neither collectives nor CUDA are touched. To spawn would import torch and torchrec again in every worker, seconds
    at each epoch's start; a fork server would make a server the workers' parent instead of the rank, so that they
    could outlive it.

    Blocks travel as numpy arrays through a pipe: tensors would go through /dev/shm, which is small in a container.
    """
    rank_pid = os.getpid()

    def die_with_rank(worker: int) -> None:
        # The signal comes when the thread that forked ends, so the loader's iteration must not outlive its thread.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != rank_pid:
            os._exit(1)

    return DataLoader(
        share,
        batch_size=None,
        collate_fn=_unchanged,
        num_workers=num_workers,
        prefetch_factor=1,  # one block ahead
        worker_init_fn=die_with_rank,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # else the loader draws from the generator that the model uses
    )


_PR_SET_PDEATHSIG = 1


def _unchanged(block: Any) -> Any:
    return block
