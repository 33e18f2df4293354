"""The error of the store: one line that a person can act on."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class StorageError(OSError):
    """A file or folder that could not be read or written. The exception that the store raised is its cause."""

    def __init__(self, uri: str, reason: str):
        super().__init__(f"{uri}: {reason}")
        self.uri = uri
        self.reason = reason

    def __reduce__(self) -> tuple[type["StorageError"], tuple[str, str]]:
        return type(self), (self.uri, self.reason)


@contextmanager
def reporting(
    uri: str, doing: str, keep: type[FileNotFoundError] | type[FileExistsError] | None = None
) -> Iterator[None]:
    """Turns whatever a filesystem raises into a StorageError; each fsspec implementation has errors of its own.

    Args:
        uri: What is read or written.
        doing: The verb of the message, `cannot <doing>`.
        keep: The error that the caller may expect; it is raised as itself, with the URI.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if keep is not None and isinstance(error, keep):
            code = errno.ENOENT if keep is FileNotFoundError else errno.EEXIST
            raise keep(code, os.strerror(code), uri) from error
        raise StorageError(uri, f"cannot {doing}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.strerror is None:
        return f"no such bucket or folder ({error})"
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or type(error).__name__
    if error.errno == errno.ENOTDIR and isinstance(error.filename, str):
        path = Path(error.filename)
        for place in (path, *path.parents):
            if place.exists() and not place.is_dir():
                return f"{place} is a file, and a folder should be there"
    return error.strerror
