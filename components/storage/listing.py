"""What is in a folder now: files with size and version, and the folders below it."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thaw.components.storage.errors import StorageError, reporting
from thaw.components.storage.filesystem import is_local, join, open_filesystem


@dataclass(frozen=True)
class FileInfo:
    """A file as its store lists it."""

    path: str
    """Its URI: that of the listed folder, and the names below it."""
    size: int
    """In bytes."""
    version: str | None
    """`generation:<number>` where the store counts them (GCS), else None: `content_version` then tells versions
    apart."""


def list_files(uri: str) -> list[FileInfo]:
    """All files below a folder, at any depth, by name; of a file, itself; of what is absent, none.

    Raises:
        StorageError: a folder cannot be read; none is passed over.
    """
    with reporting(uri, "list"):
        filesystem, path = open_filesystem(uri)
        if is_local(filesystem):
            return sorted(_local_files(uri, Path(path)), key=lambda file: file.path)
        try:
            found = filesystem.find(path, detail=True)
        except FileNotFoundError:
            return []
        files = []
        for name, info in found.items():
            if info["type"] == "file" and not name.endswith("/"):
                below = name[len(path) :].strip("/")
                generation = info.get("generation")
                version = f"generation:{generation}" if generation else None
                files.append(FileInfo(join(uri, below) if below else uri, int(info["size"]), version))
        return sorted(files, key=lambda file: file.path)


def list_dirs(uri: str) -> list[str]:
    """Names (not URIs) of the folders right below a folder, sorted; of an absent folder, none.

    Raises:
        StorageError: it cannot be read, or is a file.
    """
    with reporting(uri, "list"):
        filesystem, path = open_filesystem(uri)
        try:
            if is_local(filesystem):
                with os.scandir(path) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            infos = filesystem.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return sorted(info["name"].rstrip("/").rpartition("/")[2] for info in infos if info["type"] == "directory")


def content_version(uri: str) -> str:
    """`sha256:<hex>` of a file's content, read as a stream.

    Raises:
        FileNotFoundError: it is not there.
        StorageError: it cannot be read.
    """
    with reporting(uri, "read", keep=FileNotFoundError):
        filesystem, path = open_filesystem(uri)
        with filesystem.open(path, "rb") as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _local_files(uri: str, path: Path) -> Iterator[FileInfo]:
    if path.is_file():
        yield FileInfo(uri, path.stat().st_size, None)
        return
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return
    for entry in entries:
        below = join(uri, entry.name)
        if entry.is_dir():
            yield from _local_files(below, Path(entry.path))
            continue
        try:
            yield FileInfo(below, entry.stat().st_size, None)
        except FileNotFoundError:
            if entry.is_symlink():
                raise StorageError(below, "is a link to a file that is not there") from None
            # Otherwise it was removed since the folder was read, as writers do with their temporary files.
