"""What is in a folder now: files with size and version, and the folders below it."""

import datetime
import fnmatch
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thaw.components.storage.errors import StorageError, reporting
from thaw.components.storage.filesystem import is_gcs, is_local, join, open_filesystem


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
    modified_s: float | None = None
    """When it was written, in seconds since the epoch by the store's clock, where the store tells."""


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
                files.append(_remote_file(join(uri, below) if below else uri, info))
        return sorted(files, key=lambda file: file.path)


def find_files(uri: str, pattern: str) -> list[FileInfo]:
    """The files below a folder whose path below it fits a pattern, by name; of an absent folder, none.

    What does not fit costs little: GCS is told the pattern, and on this machine no other folder is opened.

    Args:
        uri: The folder.
        pattern: As `*/attempt-*/*.json`: a `*` stands for any characters of one name.

    Raises:
        StorageError: a folder cannot be read.
    """
    assert not set("?[]{}\\") & set(pattern) and "**" not in pattern
    with reporting(uri, "list"):
        filesystem, path = open_filesystem(uri)
        if is_local(filesystem):
            files = list(_local_matches(uri, path, pattern.split("/")))
        elif is_gcs(filesystem):
            files = list(_gcs_files(filesystem, uri, path, pattern))
        else:
            files = list_files(uri)
        below = re.compile("[^/]*".join(map(re.escape, pattern.split("*"))))
        start = len(join(uri, ""))
        return sorted((file for file in files if below.fullmatch(file.path[start:])), key=lambda file: file.path)


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


def _gcs_files(filesystem: Any, uri: str, path: str, pattern: str) -> Iterator[FileInfo]:
    """What GCS lists of a pattern. gcsfs doesn't pass `matchGlob` on, so the API is asked itself; a server that does
    not know it, as an emulator, lists all."""
    bucket, _, folder = path.strip("/").partition("/")
    prefix = folder and join(folder, "")
    following = None
    while True:
        page = filesystem.call(
            "GET",
            "b/{}/o",
            bucket,
            json_out=True,
            prefix=prefix,
            # A character that means something in a glob is left open: the prefix is exact.
            matchGlob=re.sub(r"[*?\[\]{}\\!]", "?", prefix) + pattern,
            maxResults=1000,
            pageToken=following,
        )
        for item in page.get("items", ()):
            yield _remote_file(join(uri, item["name"][len(prefix) :]), item)
        following = page.get("nextPageToken")
        if following is None:
            return


def _remote_file(uri: str, info: dict[str, Any]) -> FileInfo:
    generation = info.get("generation")
    times = (info.get(name) for name in ("mtime", "updated", "LastModified", "created"))
    modified = next((time for time in times if time is not None), None)
    if isinstance(modified, str):
        modified = datetime.datetime.fromisoformat(modified)
    if isinstance(modified, datetime.datetime):
        modified = modified.timestamp()
    return FileInfo(uri, int(info["size"]), f"generation:{generation}" if generation else None, modified)


def _local_file(uri: str, path: Path | os.DirEntry[str]) -> FileInfo:
    status = path.stat()
    return FileInfo(uri, status.st_size, None, status.st_mtime)


def _local_matches(uri: str, path: str, names: Sequence[str]) -> Iterator[FileInfo]:
    try:
        entries = [entry for entry in os.scandir(path) if fnmatch.fnmatchcase(entry.name, names[0])]
    except FileNotFoundError:
        return
    for entry in entries:
        below = join(uri, entry.name)
        if len(names) > 1 and entry.is_dir():
            yield from _local_matches(below, entry.path, names[1:])
        elif len(names) == 1 and entry.is_file():
            with suppress(FileNotFoundError):  # It was removed since the folder was read.
                yield _local_file(below, entry)


def _local_files(uri: str, path: Path) -> Iterator[FileInfo]:
    if path.is_file():
        yield _local_file(uri, path)
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
            yield _local_file(below, entry)
        except FileNotFoundError:
            if entry.is_symlink():
                raise StorageError(below, "is a link to a file that is not there") from None
            # Otherwise it was removed since the folder was read, as writers do with their temporary files.
