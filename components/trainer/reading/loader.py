"""One epoch of rows as batches: what loaders have in common, whatever their rows are."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypedDict, TypeVar, Unpack

from thaw.components.config import RunConfig
from thaw.components.trainer.reading.blocks import Columns, Schema, read_blocks
from thaw.components.trainer.reading.ids import Counts, by_feature
from thaw.components.trainer.reading.lanes import Block, EpochOrder
from thaw.components.trainer.reading.parquet import RowGroups

Batch = TypeVar("Batch")


class EpochOptions(TypedDict, total=False):
    """What every loader may be told of its epoch."""

    start_step: int
    """The first step that is yielded; those before it are not read."""
    limit_rows: int | None
    """Ends the epoch after this many rows of its order."""
    shuffle: bool | None
    """None takes training.shuffle."""


class EpochLoader(Generic[Batch]):
    """This rank's share of an epoch; every `iter` gives the whole epoch again."""

    num_steps: int
    """Steps of the whole epoch, those before start_step included."""
    num_rows: int
    """Rows of the whole epoch over all ranks, limit_rows considered."""
    id_counts: dict[str, dict[str, int]]
    """{feature: {"hashed" | "dropped" | "overflowed" | "missing": count}} of the rows that this rank read in the last
    iteration; complete when it is exhausted. Zero counts are left out."""

    def __init__(
        self,
        config: RunConfig,
        schema: Schema,
        row_groups: RowGroups,
        cut: Callable[[Block, Sequence[Columns]], Iterator[Batch]],
        rank: int,
        world_size: int,
        epoch: int,
        *,
        sizes: Sequence[int],
        batch_size: int,
        **options: Unpack[EpochOptions],
    ) -> None:
        """Lay out the epoch; no row is read yet.

        Args:
            config: The run's document.
            schema: Of the rows.
            row_groups: Where they are.
            cut: Gives the batches of a block.
            rank: This rank.
            world_size: All ranks. Every one makes the same number of steps.
            epoch: With the seed it gives the order of the rows.
            sizes: Rows of each row group.
            batch_size: Rows a step over all ranks.
            options: Where to begin and to end, and whether to shuffle.
        """
        training, shuffle = config.training, options.get("shuffle")
        self._schema, self._row_groups, self._cut = schema, row_groups, cut
        self._order = EpochOrder(
            sizes,
            seed=config.seed,
            epoch=epoch,
            batch_size=batch_size,
            num_lanes=training.num_lanes,
            shuffle_rows=training.shuffle_rows,
            shuffle=training.shuffle if shuffle is None else shuffle,
            limit_rows=options.get("limit_rows"),
        )
        self._place = {"rank": rank, "world_size": world_size, "num_workers": training.num_workers}
        self._start_step = options.get("start_step", 0)
        self._order.check_start(self._start_step)
        self.num_steps = self._order.num_steps
        self.num_rows = self._order.num_rows
        self.id_counts = {}

    def __iter__(self) -> Iterator[Batch]:
        """The batches from start_step on."""
        counts: Counts = Counter()
        self.id_counts = {}
        blocks = read_blocks(
            self._schema, self._row_groups, self._order, start_step=self._start_step, counts=counts, **self._place
        )
        for block, parts in blocks:
            self.id_counts = by_feature(counts)
            yield from self._cut(block, parts)
