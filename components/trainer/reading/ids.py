"""Ids to rows of a table: what becomes of an id that is none."""

from collections import Counter

import numpy as np

from thaw.components.config.data import Table
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.columns import Column, DataError, describe

Counts = Counter[tuple[str, str]]
"""{(feature, what became of the id): how often}."""

_COUNTED_AS = {"hash": "hashed", "drop": "dropped", "overflow": "overflowed"}


def by_feature(counts: Counts) -> dict[str, dict[str, int]]:
    """The counts as a document: {feature: {what became of the id: how often}}, zeros left out."""
    document: dict[str, dict[str, int]] = {}
    for (feature, outcome), count in sorted(counts.items()):
        if count:
            document.setdefault(feature, {})[outcome] = count
    return document


def check(column: Column, table_name: str, table: Table, feature: str, name: str, file: DataFile) -> None:
    """Where the table's policy is `error`: refuse ids that are no row of it.

    Raises:
        DataError: with feature, table, id, number of rows, day and file.
    """
    if table.out_of_range != "error" or not len(column.values):
        return
    fix = f"set data.{table_name}_table.out_of_range to hash, drop or overflow, or its num_rows"
    if column.nulls is not None:
        raise DataError(
            f"{describe(file, name)}: feature {feature} holds null, which is no row of table {table_name}; {fix}"
        )
    if int(column.values.view(np.uint64).max()) >= table.num_rows:  # a negative id is a large one there
        low, high = int(column.values.min()), int(column.values.max())
        raise DataError(
            f"{describe(file, name)}: feature {feature} holds id {low if low < 0 else high}, which is no row of table "
            f"{table_name} (rows 0 to {table.num_rows - 1} of num_rows {table.num_rows}); {fix}"
        )


def map_ids(column: Column, table: Table, feature: str, counts: Counts) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows of the table for the ids of a column, by the table's policy.

    Args:
        column: Ids; where the policy is `error` they went through `check`.
        table: Whose policy rules.
        feature: Under which it is counted.
        counts: Gets what became of ids that are no row.

    Returns:
        Row of each value, and a mask of the values that have one (None: all).
    """
    ids = column.values
    if table.out_of_range == "error":
        return ids, None
    kept = np.ones(len(ids), bool) if column.nulls is None else ~column.nulls
    counts[feature, "missing"] += len(ids) - int(kept.sum())
    outside = ((ids < 0) | (ids >= table.num_rows)) & kept
    counts[feature, _COUNTED_AS[table.out_of_range]] += int(outside.sum())
    if table.out_of_range == "hash":
        rows = (_mix(ids) % np.uint64(table.num_rows)).astype(np.int64)
    elif table.out_of_range == "overflow":
        rows = np.where(outside, table.num_rows - 1, ids)
    else:
        rows, kept = ids, kept & ~outside
    return rows, None if kept.all() else kept


def _mix(ids: np.ndarray) -> np.ndarray:
    """A bijective mix of 64 bits in which each bit of the id moves about half of the result's.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014 (SplitMix64).
    """
    mixed = ids.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
