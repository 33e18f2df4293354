"""Collectives that the losses need: counts of all ranks, and the rows of all ranks with their gradient."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


class Counts:
    """Numbers of every rank, under way since they were asked for.

    Collective: all ranks of the group must ask, in the same order.
    """

    def __init__(self, numbers: tuple[int, ...], group: dist.ProcessGroup) -> None:
        # On the host whatever the device: the answer sizes tensors, and a device would have to be waited for.
        self._all = torch.empty(group.size() * len(numbers), dtype=torch.int64)
        self._shape = (group.size(), len(numbers))
        self._work = dist.all_gather_single(self._all, torch.tensor(numbers), group=group, async_op=True)

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
    def own(self) -> slice:
        """Where this rank's rows stand among all."""
        rank = self.group.rank()
        start = sum(self.counts[:rank])
        return slice(start, start + self.counts[rank])

    def rows(self, x: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of all ranks, by rank, each with integers that say what it is.

        Collective, forward and backward: each row's gradient is the sum of what all ranks' losses make of it.

        Args:
            x: [own rows, D] float32.
            keys: [own rows, E] int64.

        Returns:
            [total, D] with gradient, and [total, E].
        """
        return _GatherRows.apply(x, keys, self)

    def all_rows(self, x: torch.Tensor) -> torch.Tensor:
        """[total, D]: the rows of all ranks, by rank, without gradient. Collective."""
        width = max(self.counts)
        padded = x.new_empty(width, *x.shape[1:])
        padded[: len(x)] = x
        everyone = x.new_empty(len(self.counts) * width, *x.shape[1:])
        dist.all_gather_single(everyone, padded, group=self.group)
        return torch.cat([of_rank[:count] for of_rank, count in zip(everyone.split(width), self.counts)])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, keys: torch.Tensor, gathering: Gathering
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.gathering = gathering
        # One collective for both: the bits of an integer travel as two floats, which nothing computes with.
        packed = gathering.all_rows(torch.cat([x, keys.contiguous().view(torch.float32)], 1))
        all_keys = packed[:, x.shape[1] :].contiguous().view(torch.int64)
        ctx.mark_non_differentiable(all_keys)
        return packed[:, : x.shape[1]], all_keys

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        gathering: Gathering = ctx.gathering
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=gathering.group)
        return gradient[gathering.own], None, None
