"""Requests of the log as batches of jagged tensors."""

from collections.abc import Iterator, Sequence

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import RequestBatch


class RequestLoader:
    """One epoch of requests, this rank's share; every `iter` gives the whole epoch again.

    Args:
        config: The run's document.
        files: The files of the manifest, in its order.
        rank: This rank.
        world_size: All ranks. Every one makes the same number of steps.
        epoch: With the seed it gives the order of the rows.
        start_step: The first step that is yielded; those before it are not read.
        limit_rows: Reads only the first rows of the epoch's order.
        shuffle: None takes training.shuffle.
        batch_size: Requests a step over all ranks; None takes training.global_batch_size.
    """

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
        raise NotImplementedError

    def __iter__(self) -> Iterator[RequestBatch]:
        raise NotImplementedError
