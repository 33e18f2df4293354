"""The content of the items, as tensors by table row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from thaw.components.config import RunConfig
from thaw.components.config.data import Items
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.columns import Column, ColumnSpec, DataError, decode, describe
from thaw.components.trainer.reading.ids import check, map_ids
from thaw.components.trainer.reading.parquet import RowGroups


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
    """The items' content by row of the item table.

    Ids that are no row of the table follow the table's policy. Where it is `hash`, items may share a row: the first of
    them gives the content. The row that `overflow` gives to all others has none.

    Raises:
        DataError: an item twice, a list of a wrong length, a number that is none; with file, column and value.
    """
    items, num_rows = config.data.items, config.data.item_table.num_rows
    assert items is not None
    patches, tokens = items.patches, items.tokens
    content = ItemContent(
        patches=None if patches is None else torch.zeros(num_rows, patches.num, patches.width),
        tokens=None if tokens is None else torch.zeros(num_rows, tokens.max_length, dtype=torch.int64),
        token_mask=None if tokens is None else torch.zeros(num_rows, tokens.max_length, dtype=torch.bool),
        present=torch.zeros(num_rows, dtype=torch.bool),
    )
    specs = {"id": ColumnSpec(items.item_id, "integer")}
    if patches is not None:
        specs["patches"] = ColumnSpec(patches.column, "number", "list")
    if tokens is not None:
        specs["tokens"] = ColumnSpec(tokens.column, "integer", "list")
    row_groups = RowGroups(files, config.training.read_timeout_s)
    for index, size in enumerate(row_groups.sizes):
        if size:
            file = row_groups.file(index)
            table = row_groups.read(index, sorted({spec.column for spec in specs.values()}))
            columns = {key: decode(table.column(spec.column), spec, file) for key, spec in specs.items()}
            _fill(content, config, items, columns, file)
    return content


def _fill(content: ItemContent, config: RunConfig, items: Items, columns: dict[str, Column], file: DataFile) -> None:
    table = config.data.item_table
    ids = columns["id"]
    check(ids, "item", table, "item content", items.item_id, file)
    rows, kept = map_ids(ids, table, "item content", Counter())
    taken = np.ones(len(rows), bool) if kept is None else kept
    if table.out_of_range == "overflow":
        taken &= (ids.values >= 0) & (ids.values < table.num_rows)
    if table.out_of_range == "hash":
        taken &= ~content.present.numpy()[rows]
    chosen = np.flatnonzero(taken)
    unique, first = np.unique(rows[chosen], return_index=True)
    if table.out_of_range != "hash" and (len(unique) < len(chosen) or content.present.numpy()[unique].any()):
        twice = np.setdiff1d(np.arange(len(chosen)), first)
        row = rows[chosen[twice[0]]] if len(twice) else unique[content.present.numpy()[unique]][0]
        raise DataError(f"{describe(file, items.item_id)} holds item {row}, which has a row already")
    chosen = chosen[np.sort(first)]
    at = torch.from_numpy(rows[chosen])
    content.present[at] = True
    if items.patches is not None and content.patches is not None:
        size = items.patches.num * items.patches.width
        values = _padded(columns["patches"], size, file, items.patches.column, exact=True)
        wrong = ~np.isfinite(values)
        if wrong.any():
            raise DataError(f"{describe(file, items.patches.column)} holds {values[wrong][0]}")
        content.patches[at] = torch.from_numpy(values[chosen]).view(-1, *content.patches.shape[1:])
    if items.tokens is not None and content.tokens is not None and content.token_mask is not None:
        column, size = columns["tokens"], items.tokens.max_length
        high = items.tokens.vocabulary_size
        wrong = (column.values < 0) | (column.values >= high)
        if wrong.any():
            raise DataError(
                f"{describe(file, items.tokens.column)} holds {column.values[wrong][0]}, and 0 to {high - 1} is allowed"
            )
        values = _padded(column, size, file, items.tokens.column, exact=False)
        content.tokens[at] = torch.from_numpy(values[chosen])
        content.token_mask[at] = torch.from_numpy(np.arange(size) < column.lengths[chosen, None])


def _padded(column: Column, size: int, file: DataFile, name: str, *, exact: bool) -> np.ndarray:
    """[rows, size]: the lists, with zeros behind the short ones. An empty list is all zeros even where `exact`."""
    lengths = column.lengths
    wrong = (lengths != size) & (lengths != 0) if exact else lengths > size
    if wrong.any():
        rule = f"{size}" if exact else f"at most {size}"
        raise DataError(f"{describe(file, name)} holds a list of {lengths[wrong][0]} values, and {rule} is allowed")
    if column.nulls is not None:
        raise DataError(f"{describe(file, name)} holds null")
    padded = np.zeros((len(lengths), size), column.values.dtype)
    padded[np.arange(size) < lengths[:, None]] = column.values
    return padded
