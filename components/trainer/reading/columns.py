"""A column of a row group as flat numpy arrays, whatever type that day's file gave it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from thaw.components.select_window.window import DataFile

Kind = Literal["integer", "label", "number"]
Shape = Literal["plain", "list", "either"]


class DataError(ValueError):
    """The data is not what the configuration says. The message has day, file, column and value."""


@dataclass(frozen=True)
class ColumnSpec:
    """What is asked of a column."""

    column: str
    """Its name in the files."""
    kind: Kind
    """`integer` becomes int64; `label` (0 or 1: integer, bool or float) int8; `number` float32."""
    shape: Shape = "plain"


@dataclass
class Column:
    """Values of consecutive rows: one a row, or with offsets a list a row."""

    values: np.ndarray
    """[values, ...]."""
    offsets: np.ndarray | None = None
    """[rows + 1] from 0, where each row is a list."""
    nulls: np.ndarray | None = None
    """[values] bool; None if there is none."""

    @property
    def num_rows(self) -> int:
        """Rows, not values."""
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Values of each row, int64."""
        if self.offsets is None:
            return np.ones(len(self.values), dtype=np.int64)
        return np.diff(self.offsets).astype(np.int64, copy=False)

    def row_of(self, value: int) -> int:
        """The row that a value stands in."""
        return value if self.offsets is None else int(np.searchsorted(self.offsets, value, side="right")) - 1

    def slice(self, start: int, stop: int) -> "Column":
        """Rows [start, stop), without a copy of the values."""
        offsets = None
        if self.offsets is not None:
            offsets = self.offsets[start : stop + 1]
            start, stop = int(offsets[0]), int(offsets[-1])
            offsets = offsets - start
        return Column(self.values[start:stop], offsets, None if self.nulls is None else self.nulls[start:stop])

    def take(self, rows: np.ndarray) -> "Column":
        """The rows of these indices."""
        if self.offsets is None:
            return Column(self.values[rows], None, None if self.nulls is None else self.nulls[rows])
        return self._pick(self.offsets[:-1][rows], self.lengths[rows])

    def head(self, num: int) -> "Column":
        """At most the first `num` values of each row."""
        if self.offsets is None or (self.lengths <= num).all():
            return self
        return self._pick(self.offsets[:-1], np.minimum(self.lengths, num))

    def keep(self, kept: np.ndarray) -> "Column":
        """The values that a mask keeps; rows stay, and become lists."""
        before = np.concatenate([[0], np.cumsum(kept)])
        offsets = before if self.offsets is None else before[self.offsets]
        return Column(self.values[kept], offsets, None if self.nulls is None else self.nulls[kept])

    def _pick(self, starts: np.ndarray, lengths: np.ndarray) -> "Column":
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        picked = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Column(self.values[picked], offsets, None if self.nulls is None else self.nulls[picked])


def concatenate(columns: Sequence[Column]) -> Column:
    """The rows of all, one after the other."""
    values = np.concatenate([column.values for column in columns])
    nulls = None
    if any(column.nulls is not None for column in columns):
        nulls = np.concatenate(
            [np.zeros(len(column.values), bool) if column.nulls is None else column.nulls for column in columns]
        )
    if all(column.offsets is None for column in columns):
        return Column(values, None, nulls)
    return Column(values, np.concatenate([[0], np.cumsum(np.concatenate([c.lengths for c in columns]))]), nulls)


def permute(lengths: torch.Tensor, values: torch.Tensor, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lists of a flat tensor in another order: their lengths, their values.

    FBGEMM copies list by list, which is several times faster than indexing value by value.

    Args:
        lengths: Of each list.
        values: All lists, int64 or float32.
        order: int32, which list comes at each place; each comes once.
    """
    ordered_lengths, ordered, _ = torch.ops.fbgemm.permute_1D_sparse_data(order, lengths, values, None, len(values))
    return ordered_lengths, ordered


def describe(file: DataFile, column: str) -> str:
    """How messages begin: day, file, column."""
    day = "" if file.day is None else f"day {file.day}, "
    return f"{day}{file.uri}: column {column!r}"


def decode(array: pa.ChunkedArray, spec: ColumnSpec, file: DataFile) -> Column:
    """A column as Parquet gave it, as flat arrays.

    Raises:
        DataError: its type is none that `spec` takes, or a uint64 does not fit int64.
    """
    chunk = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    kind = chunk.type
    if pa.types.is_null(kind):  # what a writer makes of a day on which all is null
        if spec.shape == "plain":
            return Column(np.zeros(len(chunk), _DTYPES[spec.kind]), None, np.ones(len(chunk), bool))
        return Column(np.zeros(0, _DTYPES[spec.kind]), np.zeros(len(chunk) + 1, np.int64))
    offsets = None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if spec.shape == "plain":
            raise DataError(f"{describe(file, spec.column)} is {kind}, and one {_NEEDED[spec.kind]} a row is needed")
        if chunk.null_count or pa.types.is_fixed_size_list(kind):  # a null list may have values under it
            lengths = pc.list_value_length(chunk).fill_null(0).to_numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            chunk = chunk.flatten()
        else:
            offsets = chunk.offsets.to_numpy()
            chunk = chunk.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            offsets = offsets - offsets[0]
    elif spec.shape == "list":
        raise DataError(f"{describe(file, spec.column)} is {kind}, and a list of {_NEEDED[spec.kind]} is needed")
    return _flat(chunk, offsets, spec, file, kind)


_NEEDED = {"integer": "int64", "label": "int8 (0 or 1)", "number": "float"}
_DTYPES = {"integer": np.int64, "label": np.int8, "number": np.float32}


def _flat(values: pa.Array, offsets: np.ndarray | None, spec: ColumnSpec, file: DataFile, found: pa.DataType) -> Column:
    kind = values.type
    if pa.types.is_null(kind):
        return Column(np.zeros(len(values), _DTYPES[spec.kind]), offsets, np.ones(len(values), bool))
    accepted = pa.types.is_integer(kind) or (
        spec.kind != "integer" and (pa.types.is_boolean(kind) or pa.types.is_floating(kind))
    )
    if not accepted:
        needed = _NEEDED[spec.kind]
        needed = needed if offsets is None else f"list<{needed}>"
        raise DataError(f"{describe(file, spec.column)} is {found}, and {needed} is needed")
    nulls = None
    if values.null_count:  # to numpy, pyarrow would turn integers with nulls into doubles
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        values = values.fill_null(False if pa.types.is_boolean(kind) else 0)
    flat = values.to_numpy(zero_copy_only=False)
    if flat.dtype == np.uint64 and len(flat) and int(flat.max()) > np.iinfo(np.int64).max:
        raise DataError(
            f"{describe(file, spec.column)} is {found} and holds {int(flat.max())}, more than int64 can hold"
        )
    if spec.kind == "label":
        if flat.dtype == np.int8:  # the quick way, in one pass: as unsigned, a negative is a large one
            fits = not len(flat) or flat.view(np.uint8).max() <= 1
        else:
            fits = ((flat == 0) | (flat == 1)).all()
        if not fits:
            wrong = flat[(flat != 0) & (flat != 1)][0]
            raise DataError(f"{describe(file, spec.column)} holds {wrong}, and a label is 0 or 1")
    return Column(flat.astype(_DTYPES[spec.kind], copy=False), offsets, nulls)
