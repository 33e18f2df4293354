"""A data set of ours is whole when its mark is there: `_COMPLETE.json`, written last, with settings and digests."""

import hashlib
from pathlib import Path
from typing import Any

from thaw.components import storage

MARK = "_COMPLETE.json"


class DataSetError(ValueError):
    """A data set cannot be made or taken. The message says what to do."""


def is_complete(uri: str, settings: dict[str, Any]) -> bool:
    """Whether the data set of these settings lies whole at `uri`.

    Args:
        uri: Folder of the data set.
        settings: All that its content follows from, as in JSON.

    Raises:
        DataSetError: a data set of other settings lies there, or files of a whole one are gone.
    """
    try:
        mark = storage.read_json(storage.join(uri, MARK))
    except FileNotFoundError:
        return False
    if mark["settings"] != settings:
        names = sorted(mark["settings"].keys() | settings.keys())
        differing = [
            f"{name} is {mark['settings'].get(name)!r}, not {settings.get(name)!r}"
            for name in names
            if mark["settings"].get(name) != settings.get(name)
        ]
        raise DataSetError(
            f"{uri} holds another data set: {'; '.join(differing)}. Name another folder, or remove that one first"
        )
    found = _sizes(uri)
    for name, file in mark["files"].items():
        if found.get(name) != file["size"]:
            state = "is absent" if name not in found else f"has {found[name]} bytes"
            raise DataSetError(
                f"{uri} was a whole data set, but {name} {state} and had {file['size']} bytes. "
                f"Remove the folder and make it anew"
            )
    return True


def publish(folder: Path, uri: str, settings: dict[str, Any]) -> None:
    """Copy a data set from a local folder to `uri`, and mark it as whole.

    What an interrupted copy of the same data set left there is replaced.

    Raises:
        DataSetError: there are files at `uri` that don't belong to it.
        StorageError: the store refuses.
    """
    files = {
        path.relative_to(folder).as_posix(): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    if foreign := sorted(_sizes(uri).keys() - files.keys()):
        raise DataSetError(
            f"{uri} is not empty: it holds {foreign[0]}{f' and {len(foreign) - 1} more' if foreign[1:] else ''}, which "
            f"the data set to be written there does not. Name another folder, or empty that one first"
        )
    storage.upload_tree(folder, uri)
    storage.write_json(storage.join(uri, MARK), {"settings": settings, "files": files})


def _sizes(uri: str) -> dict[str, int]:
    """Size of each file below the folder, by its name from there; files that tools leave (`_x`, `.x`) left out."""
    sizes = {file.path.removeprefix(storage.join(uri, "")): file.size for file in storage.list_files(uri)}
    return {name: size for name, size in sizes.items() if not name.rpartition("/")[2].startswith(("_", "."))}
