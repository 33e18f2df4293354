"""What a job reports of itself in the end, over all ranks."""

import resource
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from thaw.components.trainer.startup import Ranks


class Tally:
    """Counts what this rank trained or scored, and adds the ranks up in the end."""

    def __init__(self, ranks: Ranks, before: Mapping[str, int] | None = None) -> None:
        """Begin.

        Args:
            ranks: who count.
            before: what all ranks had counted when the job was interrupted.
        """
        self._begun = time.monotonic()
        self._ranks = ranks
        self._counts: Counter[str] = Counter(before if ranks.rank == 0 else None)
        self._id_counts: dict[str, Counter[str]] = {}

    def add(self, **counts: int) -> None:
        """Count, each under its name."""
        self._counts.update(counts)

    def add_ids(self, id_counts: dict[str, dict[str, int]]) -> None:
        """Count what became of ids that are no rows, by feature, as a loader gives it."""
        for feature, counts in id_counts.items():
            self._id_counts.setdefault(feature, Counter()).update(counts)

    def counts(self) -> dict[str, int]:
        """Sums over ranks so far, without those of ids. Collective."""
        everyone: list[Any] = [None] * self._ranks.world_size
        dist.all_gather_object(everyone, self._counts, group=self._ranks.world)
        return dict(sum(everyone, Counter()))

    def figures(self) -> dict[str, Any]:
        """Sums over ranks, seconds since the start, and the peak memory of each rank. Collective."""
        ranks, seconds = self._ranks, time.monotonic() - self._begun
        own = (self._counts, self._id_counts, peak_rss_bytes())
        everyone: list[Any] = [None] * ranks.world_size
        dist.all_gather_object(everyone, own, group=ranks.world)
        counts: Counter[str] = Counter()
        id_counts: dict[str, Counter[str]] = {}
        for of_rank, ids_of_rank, _ in everyone:
            counts.update(of_rank)
            for feature, found in ids_of_rank.items():
                id_counts.setdefault(feature, Counter()).update(found)
        return {
            **counts,
            "seconds": round(seconds, 3),
            "id_counts": {feature: dict(found) for feature, found in sorted(id_counts.items())},
            "peak_rss_bytes": [rss for _, _, rss in everyone],
            "world_size": ranks.world_size,
        }


def peak_rss_bytes() -> int:
    """The most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_steps(what: str, first: int, made: int, expected: int, num_rows: int) -> None:
    """Pass an epoch that made all of its steps.

    Args:
        what: names the epoch.
        first: its first step here.
        made: steps that are made, those before `first` included.
        expected: steps that it has.
        num_rows: that they were to train.

    Raises:
        RuntimeError: none was made, or not all.
    """
    if made == first or made != expected:
        raise RuntimeError(f"{what} made {made - first} steps of {expected - first}, for {num_rows} rows of the window")
