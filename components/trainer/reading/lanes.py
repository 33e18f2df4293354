"""The order of the rows of an epoch: arithmetic alone, no file is read here.

The row groups of all files, shuffled by (seed, epoch), make one sequence of rows. It is cut into contiguous lanes, and
the order of the epoch goes round the lanes: position p is row p // S of lane p % S, S the number of lanes. Each global
batch is the next G positions.

    sequence   [ row group 4 | row group 0 | row group 2 | row group 1 | row group 3 ]
    lanes      [ lane 0 ---------- | lane 1 ---------- | lane 2 ---------- ]            S = 3
    positions    0 3 6 9 ...         1 4 7 10 ...        2 5 8 11 ...
    batches      {0 1 2 3 4 5} {6 7 8 9 10 11} ...                                      G = 6

A rank owns whole lanes, and of every batch the rows that these lanes hold there: ranks and workers decide who reads a
row, and never when it comes. Rows are shuffled inside blocks: the rows of one lane that lie in one block of B positions
change places. B is a multiple of G and of S, so that no batch reaches over two blocks. Inside a batch rows stand lane
by lane: the shares of the ranks, one after the other, are the batch that one rank alone would read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one row group."""

    row_group: int
    """Counted over all files."""
    start: int
    stop: int


@dataclass(frozen=True)
class Block:
    """What some lanes hold of one block."""

    pieces: tuple[Piece, ...]
    """Where the rows lie, lane after lane."""
    used: np.ndarray | None
    """Which of the rows of `pieces` come into a batch, ascending; None if all of them do."""
    order: np.ndarray
    """[rows used] int64: indices into the rows used, in the order of the batches."""
    first_step: int
    rows_per_step: np.ndarray
    """Rows that these lanes give to each step of the block, from first_step on."""


class EpochOrder:
    """Which row comes in which step."""

    def __init__(
        self,
        row_group_sizes: Sequence[int],
        *,
        seed: int,
        epoch: int,
        batch_size: int,
        num_lanes: int,
        shuffle_rows: int,
        shuffle: bool,
        limit_rows: int | None = None,
    ) -> None:
        """Lay out an epoch.

        Args:
            row_group_sizes: Rows of each row group, over all files.
            seed: With the epoch it gives the order.
            epoch: Counted from 0.
            batch_size: Rows a step over all ranks, G.
            num_lanes: At most this many lanes; no more than a batch has rows, or whole lanes would miss each batch.
            shuffle_rows: About this many rows are shuffled together.
            shuffle: False leaves the row groups, and the rows of a lane, in the order of the files.
            limit_rows: The epoch ends after this many positions.
        """
        self._key = (seed, epoch)
        self._shuffle = shuffle
        sizes = np.asarray(row_group_sizes, dtype=np.int64)
        self._sequence = np.random.default_rng(self._key).permutation(len(sizes)) if shuffle else np.arange(len(sizes))
        self._group_starts = np.concatenate([[0], np.cumsum(sizes[self._sequence])])
        total = int(self._group_starts[-1])

        self.batch_size = batch_size
        self.num_lanes = min(num_lanes, batch_size)
        self._lane_sizes = (total - np.arange(self.num_lanes) + self.num_lanes - 1) // self.num_lanes
        self._lane_starts = np.concatenate([[0], np.cumsum(self._lane_sizes)])
        unit = math.lcm(batch_size, self.num_lanes)
        self._block_size = unit * max(1, round(shuffle_rows / unit))

        self.num_rows = total if limit_rows is None else min(total, limit_rows)
        self.num_steps = -(-self.num_rows // batch_size)
        self.num_blocks = -(-self.num_rows // self._block_size)

    def check_start(self, step: int) -> None:
        """Refuse to start where there is no step.

        Raises:
            ValueError: the epoch has fewer steps.
        """
        if not 0 <= step <= self.num_steps:
            raise ValueError(f"start_step {step} is not in an epoch of {self.num_steps} steps")

    def block_of(self, step: int) -> int:
        """The block that a step lies in."""
        return step * self.batch_size // self._block_size

    def lanes(self, rank: int, world_size: int, worker: int = 0, num_workers: int = 1) -> range:
        """The lanes of one reader: consecutive, and those of a rank's workers together are the rank's."""
        start, stop = (-(-self.num_lanes * part // world_size) for part in (rank, rank + 1))
        share = [start + (stop - start) * part // num_workers for part in (worker, worker + 1)]
        return range(*share)

    def block(self, index: int, lanes: range, start_step: int = 0) -> Block:
        """What `lanes` hold of a block, from start_step on."""
        first_step = max(start_step, index * self._block_size // self.batch_size)
        last_step = min(self.num_steps, (index + 1) * self._block_size // self.batch_size)
        rows_per_lane = self._block_size // self.num_lanes
        pieces: list[Piece] = []
        rows: list[np.ndarray] = []  # of each lane: index into the rows of `pieces`, by position
        positions: list[np.ndarray] = []
        num_read = 0
        for lane in lanes:
            start, stop = (min((index + part) * rows_per_lane, int(self._lane_sizes[lane])) for part in (0, 1))
            pieces += self._pieces(int(self._lane_starts[lane]) + start, int(self._lane_starts[lane]) + stop)
            moved = np.arange(stop - start)
            if self._shuffle:
                moved = np.random.default_rng((*self._key, lane, index)).permutation(stop - start)
            rows.append(moved + num_read)
            positions.append(np.arange(start, stop) * self.num_lanes + lane)
            num_read += stop - start

        position, row = (np.concatenate([np.empty(0, dtype=np.int64), *parts]) for parts in (positions, rows))
        wanted = (position >= first_step * self.batch_size) & (position < self.num_rows)
        used = None
        if not wanted.all():
            position, row = position[wanted], row[wanted]
            used = np.sort(row)
            row = np.searchsorted(used, row)
        step = position // self.batch_size - first_step
        # The stable sort keeps lanes and rows in their order inside a step. It is a radix sort for the small types.
        sorting = np.argsort(step.astype(np.min_scalar_type(max(0, last_step - first_step))), kind="stable")
        rows_per_step = np.bincount(step, minlength=max(0, last_step - first_step))
        return Block(tuple(pieces), used, row[sorting], first_step, rows_per_step)

    def _pieces(self, start: int, stop: int) -> list[Piece]:
        """Where the rows [start, stop) of the sequence lie."""
        first = int(np.searchsorted(self._group_starts, start, side="right")) - 1
        pieces = []
        for place in range(first, len(self._sequence)):
            origin, end = int(self._group_starts[place]), int(self._group_starts[place + 1])
            if origin >= stop:
                break
            if max(start, origin) < min(stop, end):
                pieces.append(Piece(int(self._sequence[place]), max(start, origin) - origin, min(stop, end) - origin))
        return pieces
