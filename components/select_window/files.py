"""Data files: what counts as one, and pinning it by size, version and rows."""

import datetime
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from thaw.components import storage
from thaw.components.select_window.window import DataFile

_MAGIC = b"PAR1"
_TRAILER_BYTES = 8
"""Length of the footer, four bytes, and the magic."""
_FIRST_READ_BYTES = 1 << 16
"""Most footers are shorter."""


class BrokenFileError(ValueError):
    """A data file that is no whole Parquet file, or lacks a column. The message names it, and its size or column."""


def list_data_files(uri: str) -> tuple[list[storage.FileInfo], list[str]]:
    """The data files at a URI, a folder or a single file, and the names there that are no data.

    Data is what ends in `.parquet`, unless its name or a folder on the way begins with `_` or `.`, as markers,
    checksums, temporary files and those of an unfinished writer do.
    """
    data, ignored = [], []
    for file in storage.list_files(uri):
        name = file.path.removeprefix(storage.join(uri, "")) if file.path != uri else uri.rpartition("/")[2]
        if name.endswith(".parquet") and not any(part.startswith(("_", ".")) for part in name.split("/")):
            data.append(file)
        else:
            ignored.append(name)
    return data, ignored


def pin(file: storage.FileInfo, day: datetime.date | None, columns: Mapping[str, str]) -> DataFile:
    """The file with its rows and its version, so that a later reader knows it again.

    Args:
        file: The file.
        day: Of its folder.
        columns: Those that it must have, each with the configuration's key that names it.

    Raises:
        BrokenFileError: empty, cut short, no Parquet file, or without a column.
        OSError: it cannot be read.
    """
    footer = _footer(file)
    found = footer.schema.to_arrow_schema().names
    missing = [f"{column!r} ({key})" for column, key in columns.items() if column not in found]
    if missing:
        raise BrokenFileError(f"{file.path}: no column {', '.join(missing)}; it has {', '.join(found)}")
    twice = [f"{column!r} ({key})" for column, key in columns.items() if found.count(column) > 1]
    if twice:
        raise BrokenFileError(f"{file.path}: more than one column {', '.join(twice)}")
    rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    version = file.version or storage.content_version(file.path)
    return DataFile(uri=file.path, day=day, size=file.size, version=version, row_groups=rows)


def _footer(file: storage.FileInfo) -> pq.FileMetaData:
    tail = _tail(file, _FIRST_READ_BYTES)
    if len(tail) < _TRAILER_BYTES or not tail.endswith(_MAGIC):
        raise BrokenFileError(f"{file.path}: {file.size} bytes, no whole Parquet file; empty, or cut short?")
    footer_bytes = int.from_bytes(tail[-_TRAILER_BYTES : -len(_MAGIC)], "little") + _TRAILER_BYTES
    if footer_bytes > len(tail):
        tail = _tail(file, footer_bytes)
    try:
        return pq.read_metadata(pa.BufferReader(_MAGIC + tail[-footer_bytes:]))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise BrokenFileError(f"{file.path}: {file.size} bytes, its Parquet footer is damaged: {reason}") from error


def _tail(file: storage.FileInfo, num_bytes: int) -> bytes:
    return storage.read_bytes(file.path, max(0, file.size - num_bytes), file.size) if file.size else b""
