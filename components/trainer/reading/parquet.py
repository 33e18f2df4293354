"""Row groups of the files that the window document pins."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem

from thaw.components import storage
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.columns import DataError

MAX_OPEN_FILES = 64


class ReadError(OSError):
    """A file that could not be read, or is not the file that was selected. The message has its URI."""


class RowGroups:
    """The row groups of all files, counted through in the order of the files.

    Nothing is opened before the first read, so an instance may be made in one process and used in a child of it. From
    the first read on it belongs to its process: filesystems, their event loops and threads don't live through a fork.
    """

    def __init__(self, files: Sequence[DataFile], read_timeout_s: int) -> None:
        """Name the files.

        Args:
            files: As the window document has them.
            read_timeout_s: After this long without an answer a request to a remote store fails.
        """
        self._read_timeout_s = read_timeout_s
        self._places = [(file, group) for file in files for group in range(len(file.row_groups))]
        self._open: OrderedDict[str, tuple[pq.ParquetFile, frozenset[str]]] = OrderedDict()

    def __len__(self) -> int:
        """Row groups of all files."""
        return len(self._places)

    @property
    def sizes(self) -> list[int]:
        """Rows of each."""
        return [file.row_groups[group] for file, group in self._places]

    def file(self, index: int) -> DataFile:
        """The file that a row group lies in."""
        return self._places[index][0]

    def read(self, index: int, columns: Sequence[str]) -> pa.Table:
        """Columns of a row group, in one thread.

        Raises:
            DataError: the file has no such column.
            ReadError: the file is absent, changed, truncated, or the store does not answer in time.
        """
        file, group = self._places[index]
        try:
            parquet, names = self._parquet(file)
            for column in columns:
                if column not in names:
                    day = "" if file.day is None else f"day {file.day}, "
                    raise DataError(f"{day}{file.uri} has no column {column!r}; it has {sorted(names)}")
            return parquet.read_row_group(group, columns=list(columns), use_threads=False)
        except (DataError, ReadError):
            raise
        except FileNotFoundError as error:
            raise ReadError(f"{file.uri}: in the manifest but not found") from error
        except (TimeoutError, fsspec.exceptions.FSTimeoutError) as error:
            raise ReadError(f"{file.uri}: no answer from the store within {self._read_timeout_s} s") from error
        except Exception as error:  # every filesystem of fsspec has exceptions of its own
            raise ReadError(f"{file.uri}: cannot be read: {type(error).__name__}: {str(error).strip()}") from error

    def _parquet(self, file: DataFile) -> tuple[pq.ParquetFile, frozenset[str]]:
        """The open file, and its columns."""
        if file.uri in self._open:
            self._open.move_to_end(file.uri)
            return self._open[file.uri]
        filesystem, path = storage.open_filesystem(file.uri, self._read_timeout_s)
        size = _ask(filesystem, "info", path, timeout_s=self._read_timeout_s)["size"]
        if size != file.size:
            raise ReadError(
                f"{file.uri} has {size} bytes, and {file.size} in the manifest: it changed after its selection"
            )
        if isinstance(filesystem, LocalFileSystem):
            # Not a memory map: a file that is cut while it is mapped ends the process without a word.
            parquet = pq.ParquetFile(pa.OSFile(path))
        else:
            # pre_buffer joins the column chunks of a row group to few large requests.
            source = pa.PythonFile(_RemoteFile(filesystem, path, size, self._read_timeout_s), mode="r")
            parquet = pq.ParquetFile(source, pre_buffer=True)
        found = tuple(parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups))
        if found != file.row_groups:
            raise ReadError(f"{file.uri} has row groups of {found} rows, and {file.row_groups} in the manifest")
        self._open[file.uri] = parquet, frozenset(parquet.schema_arrow.names)
        if len(self._open) > MAX_OPEN_FILES:
            self._open.popitem(last=False)
        return self._open[file.uri]


class _RemoteFile:
    """What pyarrow needs of a file object, over ranged requests that each answer in time or fail."""

    closed = False

    def __init__(self, filesystem: fsspec.AbstractFileSystem, path: str, size: int, timeout_s: int) -> None:
        self._filesystem, self._path, self._size, self._timeout_s = filesystem, path, size, timeout_s
        self._position = 0

    def read(self, num_bytes: int = -1) -> bytes:
        stop = self._size if num_bytes < 0 else min(self._size, self._position + num_bytes)
        if stop <= self._position:
            return b""
        data: bytes = _ask(
            self._filesystem, "cat_file", self._path, start=self._position, end=stop, timeout_s=self._timeout_s
        )
        if len(data) != stop - self._position:
            raise OSError(f"the store gave {len(data)} bytes for the range {self._position} to {stop}")
        self._position = stop
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _ask(filesystem: fsspec.AbstractFileSystem, operation: str, *args: Any, timeout_s: int, **kwargs: Any) -> Any:
    """The answer of a filesystem, in time: a remote one would retry and wait by rules of its own for much longer."""
    if isinstance(filesystem, AsyncFileSystem):
        return sync(filesystem.loop, getattr(filesystem, f"_{operation}"), *args, timeout=timeout_s, **kwargs)
    return getattr(filesystem, operation)(*args, **kwargs)
