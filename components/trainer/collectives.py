"""Collectives that the losses need: counts of all ranks, and rows of all ranks with their gradient."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


class Counts:
    """Numbers of every rank, under way since they were asked for.

    Collective: all ranks of the group must ask, in the same order.
    """

    def __init__(self, numbers: tuple[int, ...], group: dist.ProcessGroup) -> None:
        # On the host on every device: the answer sizes tensors, and a device would have to be waited for.
        self._all = torch.empty(group.size() * len(numbers), dtype=torch.int64)
        self._shape = (group.size(), len(numbers))
        self._work = dist.all_gather_into_tensor(self._all, torch.tensor(numbers), group=group, async_op=True)

    def wait(self) -> list[tuple[int, ...]]:
        """What each rank said, by rank."""
        self._work.wait()
        return [tuple(row) for row in self._all.view(self._shape).tolist()]


@dataclass(frozen=True)
class Gathering:
    """How to bring rows of all ranks together: rank r has `counts[r]` of them."""

    counts: tuple[int, ...]
    group: dist.ProcessGroup

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.counts)

    @property
    def own_start(self) -> int:
        """Where this rank's rows begin among all."""
        return sum(self.counts[: self.group.rank()])

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """[total, ...]: the rows of all ranks, by rank. Collective. No gradient."""
        padded = x.new_zeros(max(self.counts), *x.shape[1:])
        padded[: len(x)] = x
        everyone = x.new_empty(len(self.counts) * len(padded), *x.shape[1:])
        dist.all_gather_into_tensor(everyone, padded, group=self.group)
        if min(self.counts) == max(self.counts):
            return everyone
        return everyone.index_select(0, self._filled(everyone.device))

    def rows_with_gradient(self, x: torch.Tensor) -> torch.Tensor:
        """As `rows`; backward sums over the ranks what each rank's loss makes of them. Collective, both ways."""
        return _GatherRows.apply(x, self)

    def _filled(self, device: torch.device) -> torch.Tensor:
        """Where the rows stand among the padded ones."""
        width = max(self.counts)
        spans = [torch.arange(rank * width, rank * width + count) for rank, count in enumerate(self.counts)]
        return torch.cat(spans).to(device, non_blocking=True)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gathering: Gathering) -> torch.Tensor:
        ctx.gathering = gathering
        return gathering.rows(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        gathering: Gathering = ctx.gathering
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=gathering.group)
        start = gathering.own_start
        return gradient[start : start + gathering.counts[gathering.group.rank()]], None
