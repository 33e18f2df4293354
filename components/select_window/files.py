"""Data files: what counts as one, and pinning it by size, version and rows."""

import datetime

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
    """A data file that is no whole Parquet file. The message names it and its size."""


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


def pin(file: storage.FileInfo, day: datetime.date | None) -> DataFile:
    """The file with its rows and its version, so that a later reader knows it again.

    Raises:
        BrokenFileError: empty, cut short, or no Parquet file.
        OSError: it cannot be read.
    """
    rows = _row_groups(file)
    version = file.version or storage.content_version(file.path)
    return DataFile(uri=file.path, day=day, size=file.size, version=version, row_groups=rows)


def _row_groups(file: storage.FileInfo) -> tuple[int, ...]:
    tail = _tail(file, _FIRST_READ_BYTES)
    if len(tail) < _TRAILER_BYTES or not tail.endswith(_MAGIC):
        raise BrokenFileError(f"{file.path}: {file.size} bytes, no whole Parquet file; empty, or cut short?")
    footer_bytes = int.from_bytes(tail[-_TRAILER_BYTES : -len(_MAGIC)], "little") + _TRAILER_BYTES
    if footer_bytes > len(tail):
        tail = _tail(file, footer_bytes)
    try:
        footer = pq.read_metadata(pa.BufferReader(_MAGIC + tail[-footer_bytes:]))
        return tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise BrokenFileError(f"{file.path}: {file.size} bytes, its Parquet footer is damaged: {reason}") from error


def _tail(file: storage.FileInfo, num_bytes: int) -> bytes:
    return storage.read_bytes(file.path, max(0, file.size - num_bytes), file.size) if file.size else b""
