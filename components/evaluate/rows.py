"""Rows as arrays: a row is one candidate of one request, as the log and the predictions hold it.

Shapes: N rows, R requests, H heads in the order of the configuration. Ids stay integers from the file to the
comparison: a float holds no 64-bit id, and a column with a null would turn into floats on its way to NumPy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from thaw.components import storage
from thaw.components.config.data import Data
from thaw.components.select_window.window import DataFile


@dataclass(frozen=True)
class Ids:
    """A column of ids, of which some can be missing."""

    values: NDArray[np.int64]
    """[N]"""
    present: NDArray[np.bool_]
    """[N] Where False, the value means nothing."""


@dataclass(frozen=True)
class Rows:
    """What the baselines see of a row."""

    users: Ids
    items: Ids
    labels: NDArray[np.int8]
    """[N, H]"""


@dataclass(frozen=True)
class LoggedRows:
    """A row group of the request log."""

    request_ids: NDArray[np.int64]
    """[R]"""
    num_candidates: NDArray[np.int64]
    """[R]"""
    rows: Rows


def read_log(data: Data, file: DataFile) -> Iterator[LoggedRows]:
    """The row groups of one file of the request log, the columns of ids and labels alone.

    Raises:
        FileNotFoundError: the window document names the file, and it is gone.
        ValueError: it changed since it was selected, or its columns don't fit the configuration.
    """
    columns = data.columns
    label_columns = [head.column for head in data.heads]
    for table in read_tables(file, [columns.request_id, columns.user_id, columns.candidates, *label_columns]):
        num_candidates_R, candidates = flatten(table[columns.candidates])
        labels = []
        for name in label_columns:
            lengths_R, column = flatten(table[name])
            if not np.array_equal(lengths_R, num_candidates_R):
                raise ValueError(f"{file.uri}: lists of {name} are not as long as those of {columns.candidates}")
            labels.append(numbers(column, pa.int8(), name, file.uri))
        users = ids(table[columns.user_id], columns.user_id, file.uri)
        yield LoggedRows(
            request_ids=numbers(table[columns.request_id], pa.int64(), columns.request_id, file.uri),
            num_candidates=num_candidates_R,
            rows=Rows(
                users=Ids(np.repeat(users.values, num_candidates_R), np.repeat(users.present, num_candidates_R)),
                items=ids(candidates, columns.candidates, file.uri),
                labels=np.stack(labels, axis=1),
            ),
        )


def read_tables(file: DataFile, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The row groups of a file that the window document pins.

    Raises:
        FileNotFoundError, ValueError: as `read_log`.
    """
    filesystem, path = storage.open_filesystem(file.uri)
    try:
        opened = filesystem.open(path, "rb")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{file.uri}: in the manifest but not found") from error
    with opened:
        size = opened.seek(0, 2)
        if size != file.size:
            raise ValueError(f"{file.uri}: {size} bytes, and {file.size} when the window was selected; select it again")
        yield from read_row_groups(opened, columns, file.uri)


def read_row_groups(opened: object, columns: Sequence[str], uri: str) -> Iterator[pa.Table]:
    """The row groups of an open Parquet file, `columns` alone.

    Raises:
        ValueError: a column is not there.
    """
    parquet = pq.ParquetFile(opened)
    if absent := [name for name in columns if name not in parquet.schema_arrow.names]:
        raise ValueError(f"{uri}: no column {', '.join(absent)}; it has {', '.join(parquet.schema_arrow.names)}")
    for index in range(parquet.num_row_groups):
        yield parquet.read_row_group(index, columns=list(columns))


def flatten(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.ChunkedArray]:
    """Lengths and values of a column of lists; a column of numbers has one value a row. A null list is empty."""
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), column.slice(0, 0)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return np.ones(len(column), np.int64), column
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return lengths.to_numpy().astype(np.int64), pc.list_flatten(column)


def ids(column: pa.ChunkedArray, name: str, uri: str) -> Ids:
    """A column of ids, every one of them exact.

    Raises:
        ValueError: the column doesn't hold integers of 64 bits with a sign.
    """
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise ValueError(f"{uri}: column {name} is {column.type}; ids are integers")
    try:
        exact = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise ValueError(f"{uri}: column {name}: {error}") from error
    return Ids(pc.fill_null(exact, 0).to_numpy(), pc.is_valid(exact).to_numpy())


def numbers(column: pa.ChunkedArray, dtype: pa.DataType, name: str, uri: str) -> NDArray:
    """A column without nulls as an array.

    Raises:
        ValueError: there is a null, or a value that the type doesn't hold.
    """
    try:
        exact = column.cast(dtype)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{uri}: column {name}: {error}") from error
    if exact.null_count:
        raise ValueError(f"{uri}: column {name}: {exact.null_count} nulls")
    return exact.to_numpy()
