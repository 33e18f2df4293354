"""Whole files: read, replaced or created in one step that either happens or leaves nothing."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from thaw.components.storage.errors import StorageError, reporting
from thaw.components.storage.filesystem import is_local, join, open_filesystem


def exists(uri: str) -> bool:
    """Whether a file or folder is there, asked of the store itself."""
    with reporting(uri, "look it up"):
        filesystem, path = open_filesystem(uri)
        return bool(filesystem.exists(path))


def is_file(uri: str) -> bool:
    """Whether a file is there, and no folder."""
    with reporting(uri, "look it up"):
        filesystem, path = open_filesystem(uri)
        return bool(filesystem.isfile(path))


def digest(data: bytes) -> str:
    """`sha256:<hex>` of some content; that of a file is `content_version`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read_bytes(uri: str, start: int | None = None, end: int | None = None) -> bytes:
    """The content of a file, or its bytes start ... end - 1.

    Raises:
        FileNotFoundError: it is not there.
        StorageError: it cannot be read.
    """
    with reporting(uri, "read", keep=FileNotFoundError):
        filesystem, path = open_filesystem(uri)
        return bytes(filesystem.cat_file(path, start=start, end=end))


def read_json(uri: str) -> Any:
    """The JSON document of a file.

    Raises:
        FileNotFoundError: it is not there.
        StorageError: it cannot be read, or is no JSON.
    """
    data = read_bytes(uri)
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(uri, f"not a JSON document of {len(data)} bytes: {error}") from error


def write_bytes(uri: str, data: bytes) -> None:
    """Write a file, replacing the one that is there; folders are made.

    Raises:
        StorageError: disk full, no permission, a file where a folder should be, no such bucket.
    """
    with reporting(uri, "write"):
        filesystem, path = open_filesystem(uri)
        if is_local(filesystem):
            _write_local(Path(path), lambda file: file.write(data), os.replace)
        else:
            filesystem.pipe_file(path, data)


def create_bytes(uri: str, data: bytes) -> None:
    """Write a file that is not there yet. Of several processes that try, one succeeds.

    Raises:
        FileExistsError: it is there; it stays as it is.
        StorageError: as `write_bytes`.
    """
    with reporting(uri, "create", keep=FileExistsError):
        filesystem, path = open_filesystem(uri)
        if is_local(filesystem):
            _write_local(Path(path), lambda file: file.write(data), os.link)
        else:
            filesystem.pipe_file(path, data, mode="create")


def encode_json(document: Any) -> bytes:
    """Strict, readable, repeatable JSON: keys sorted; NaN and infinities are refused, as JSON has none."""
    return (json.dumps(document, allow_nan=False, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def write_json(uri: str, document: Any) -> None:
    """`write_bytes` of a document."""
    write_bytes(uri, encode_json(document))


def create_json(uri: str, document: Any) -> None:
    """`create_bytes` of a document."""
    create_bytes(uri, encode_json(document))


def copy_file(source_uri: str, uri: str) -> None:
    """Copy a file, whole or not at all, replacing the one that is there; inside one remote store nothing travels.

    Raises:
        FileNotFoundError: there is no such file.
        StorageError: as `write_bytes`.
    """
    source_filesystem, source = open_filesystem(source_uri)
    filesystem, path = open_filesystem(uri)
    with reporting(uri, f"write the content of {source_uri}", keep=FileNotFoundError):
        if is_local(source_filesystem):
            _put(Path(source), uri)
        elif type(filesystem) is type(source_filesystem):
            filesystem.cp_file(source, path)
        else:
            with tempfile.TemporaryDirectory(prefix="thaw-copy-") as folder:
                aside = Path(folder, "content")
                source_filesystem.get_file(source, str(aside))
                _put(aside, uri)


def upload_tree(local_path: str | Path, uri: str) -> None:
    """Copy the files below a local folder to below `uri`, each of them whole or not at all.

    Raises:
        StorageError: as `write_bytes`; files that were copied before it stay.
    """
    folder = Path(local_path)
    for source in sorted(path for path in folder.rglob("*") if path.is_file()):
        target = join(uri, source.relative_to(folder).as_posix())
        with reporting(target, f"write the content of {source}"):
            _put(source, target)


def _put(source: Path, uri: str) -> None:
    filesystem, path = open_filesystem(uri)
    if is_local(filesystem):
        with source.open("rb") as content:
            _write_local(Path(path), lambda file: shutil.copyfileobj(content, file), os.replace)
    else:
        filesystem.put_file(str(source), path)


def _write_local(path: Path, write: Callable[[BinaryIO], Any], publish: Callable[[Path, Path], None]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with aside.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        publish(aside, path)
    finally:
        aside.unlink(missing_ok=True)
