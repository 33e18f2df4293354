"""Checksums of tables that do not depend on how they are sharded."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from thaw.components.trainer.torchrec_internals import ShardedTensor

_CHUNK = 2**22
_MULTIPLIERS = (0x2545F4914F6CDD1D, 0x1B873593CC9E2D51)


def checksums(tensors: Mapping[str, ShardedTensor], group: dist.ProcessGroup) -> dict[str, str]:
    """A checksum of every tensor over all ranks: equal if all its bits are.

    Each element's bits are mixed with its place, and the results are added up: the sum is the same in any order.
    Collective. Names that a rank lacks, as it holds no row, are left to the others.

    Args:
        tensors: float32, of one or two dimensions, cut by rows.
        group: the ranks that hold them.

    Returns:
        16 hexadecimal digits by name, the same on every rank.
    """
    own = {name: _sum_of_shards(tensor) for name, tensor in tensors.items()}
    everyone: list[dict[str, int]] = [{}] * group.size()
    dist.all_gather_object(everyone, own, group=group)
    names = sorted({name for sums in everyone for name in sums})
    return {name: f"{sum(sums.get(name, 0) for sums in everyone) % 2**64:016x}" for name in names}


def _sum_of_shards(tensor: ShardedTensor) -> int:
    total = 0
    for shard in tensor.local_shards():
        start = shard.metadata.shard_offsets[0]
        width = shard.tensor[0].numel() if len(shard.tensor) else 1
        total += _sum(shard.tensor.detach().reshape(-1).view(torch.int32), start * width)
    return total % 2**64


def _sum(bits: torch.Tensor, offset: int) -> int:
    """Sum modulo 2**64 over a hash of every number and its place."""
    total = 0
    for first in range(0, len(bits), _CHUNK):
        chunk = bits[first : first + _CHUNK].long()
        place = torch.arange(offset + first, offset + first + len(chunk), device=bits.device)
        mixed = (chunk + 1) * _MULTIPLIERS[0] + place * _MULTIPLIERS[1]
        mixed = (mixed ^ (mixed >> 29)) * _MULTIPLIERS[0]
        total += int((mixed ^ (mixed >> 32)).sum())
    return total
