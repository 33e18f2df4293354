"""Initial rows of a table, the same on any number of ranks and under any sharding."""

import hashlib
import math

import torch

BLOCK_ROWS = 1024
"""Rows that one generator draws. Part of what a seed means: another number is another initialization."""


def initial_rows(seed: int, table: str, start: int, num_rows: int, dim: int) -> torch.Tensor:
    """Normal rows of standard deviation 0.5 / sqrt(dim), a function of (seed, table, row number) alone.

    Returns:
        [num_rows, dim] float32 on the CPU: the rows from `start` on.
    """
    stop = start + num_rows
    blocks = []
    for block in range(start // BLOCK_ROWS, math.ceil(stop / BLOCK_ROWS)):
        digest = hashlib.blake2b(f"{seed}/{table}/{block}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        rows = torch.randn(BLOCK_ROWS, dim, generator=generator)
        first = block * BLOCK_ROWS
        blocks.append(rows[max(start - first, 0) : stop - first])
    return torch.cat(blocks) * (0.5 / math.sqrt(dim)) if blocks else torch.empty(0, dim)
