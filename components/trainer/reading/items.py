"""The content of the items, as tensors by table row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile


@dataclass
class ItemContent:
    """Content of every row of the item table; R rows, P patches of width F, T tokens."""

    patches: torch.Tensor | None
    """[R, P, F] float32, zero where the item has none."""
    tokens: torch.Tensor | None
    """[R, T] int64, 0 where there is no token."""
    token_mask: torch.Tensor | None
    """[R, T] bool: whether there is a token."""
    present: torch.Tensor
    """[R] bool: whether the item has a row in the files."""


def load_items(config: RunConfig, files: Sequence[DataFile]) -> ItemContent:
    """The items' content by row of the item table."""
    raise NotImplementedError
