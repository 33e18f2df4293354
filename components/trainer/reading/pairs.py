"""Engagements as batches of (user, item) pairs."""

from collections.abc import Iterator, Sequence

import torch
from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import PairBatch


class PairLoader:
    """One epoch of the pairs whose action counts, this rank's share; every `iter` gives the whole epoch again.

    Args: as of RequestLoader; batch_size None takes backbone.pretrain.global_batch_size.
    """

    num_steps: int
    num_rows: int
    id_counts: dict[str, dict[str, int]]

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

    def __iter__(self) -> Iterator[PairBatch]:
        raise NotImplementedError


def count_ids(
    config: RunConfig,
    files: Sequence[DataFile],
    column: str,
    table: str,
    rank: int,
    world_size: int,
    *,
    engagements: bool = False,
) -> torch.Tensor:
    """How often each row of a table stands in a column: [num_rows] int64, this rank's share of the row groups.

    The sum over ranks is the count over all files; the caller all-reduces.

    Args:
        config: The run's document.
        files: The files of the manifest.
        column: An id column of these files, plain or a list.
        table: `user` or `item`; its policy maps the ids.
        rank: This rank.
        world_size: All ranks.
        engagements: The files are the engagement log, and only rows whose action counts are taken.
    """
    raise NotImplementedError
