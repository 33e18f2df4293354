"""The trainer's loops on the semi-synchronous pipeline: how it is set up, and what a job reports of it."""

import dataclasses
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist

from thaw.components.config import RunConfig
from thaw.components.trainer.semi_sync import PrefetchingForward
from thaw.components.trainer.semi_sync.measure import CHAIN
from thaw.components.trainer.semi_sync.places import DENSE, WAIT
from thaw.components.trainer.startup import Ranks
from thaw.components.trainer.tables import ShardedTables

TRACE_STEPS = range(20, 25)
"""Batches of a stage whose events the report draws."""


def prefetching(
    config: RunConfig, tables: ShardedTables, optimizer: torch.optim.Optimizer | None, ranks: Ranks
) -> PrefetchingForward:
    """The forward of the tables that has their rows before the model asks. Collective.

    Args:
        config: the run's document; `training.staleness` decides between pipeline and synchronous loop.
        tables: whose sharded modules' forward is replaced, until it is closed.
        optimizer: of the dense half; None where it has no parameters.
        ranks: who shares the tables.
    """
    return PrefetchingForward(
        tables.collections,
        optimizer,
        group=ranks.sparse,
        device=ranks.device,
        staleness=config.training.staleness,
        depth=config.training.staleness,
        frozen={"frozen"} & set(tables.collections),
        trace_steps=TRACE_STEPS,
        count_rows_every=config.training.log_every_steps,
    )


class Overlap:
    """Sums up what the pipeline measured of its steps, on this rank and over all."""

    def __init__(self, forward: PrefetchingForward, staleness: int) -> None:
        """Begin.

        Args:
            forward: what measures.
            staleness: that it promises.
        """
        self._measured, self._promised = forward.figures, staleness
        self._sums: Counter[str] = Counter()
        self._max_staleness = 0

    def recent(self) -> dict[str, float]:
        """Means of the steps since the last call, by a name for TensorBoard; empty if none has been measured.

        Raises:
            RuntimeError: rows were staler than promised.
        """
        sums: Counter[str] = Counter()
        while self._measured.done:
            step = self._measured.done.popleft()
            sums["steps"] += 1
            sums.update({f"s/{row}": seconds for row, seconds in step.seconds.items()})
            sums.update({f"bytes/{row}": num_bytes for row, num_bytes in step.num_bytes.items()})
            sums.update({"rows": step.num_rows or 0, "shared_rows": step.num_shared_rows or 0})
            self._max_staleness = max(self._max_staleness, step.staleness)
        if self._max_staleness > self._promised:
            raise RuntimeError(f"rows lacked {self._max_staleness} updates, and at most {self._promised} were promised")
        self._sums.update(sums)
        if not sums["steps"]:
            return {}
        ms = {f"pipeline/{name[2:]} ms": 1e3 * sums[name] / sums["steps"] for name in sums if name.startswith("s/")}
        return {**ms, "pipeline/hidden fraction": _hidden_fraction(sums), "pipeline/staleness": self._max_staleness}

    def figures(self, ranks: Ranks) -> dict[str, Any]:
        """Of all steps: means over the steps and ranks, the largest staleness, and the trace of rank 0. Collective."""
        self.recent()
        everyone: list[Any] = [None] * ranks.world_size
        dist.all_gather_object(everyone, (self._sums, self._max_staleness), group=ranks.world)
        sums: Counter[str] = Counter()
        for of_rank, _ in everyone:
            sums.update(of_rank)
        num_steps = max(1, sums["steps"])
        ms_a_step = {name[2:]: round(1e3 * sums[name] / num_steps, 3) for name in sorted(sums) if name[:2] == "s/"}
        return {
            "staleness": max(staleness for _, staleness in everyone),
            "ms_a_step": ms_a_step,
            "bytes_a_step": {row: round(sums[f"bytes/{row}"] / num_steps) for row in CHAIN},
            "hidden_fraction": round(_hidden_fraction(sums), 4),
            "exposed_share_before": round(_share(_chain_s(sums), sums[f"s/{DENSE}"]), 4),
            "exposed_share_after": round(_share(sums[f"s/{WAIT}"], sums[f"s/{DENSE}"]), 4),
            "shared_rows_share": round(sums["shared_rows"] / sums["rows"], 4) if sums["rows"] else None,
            "trace": [dataclasses.asdict(event) for event in self._measured.trace],
        }


def _chain_s(sums: Counter[str]) -> float:
    return sum(sums[f"s/{row}"] for row in CHAIN)


def _hidden_fraction(sums: Counter[str]) -> float:
    """Share of the links' time for which the dense row did not have to wait."""
    return max(0.0, 1 - sums[f"s/{WAIT}"] / chain_s) if (chain_s := _chain_s(sums)) else 1.0


def _share(sparse_s: float, dense_s: float) -> float:
    """Share of a step that the dense half stands still for the sparse one, if it takes this long."""
    return sparse_s / (sparse_s + dense_s) if sparse_s + dense_s else 0.0
