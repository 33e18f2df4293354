"""Whether pinned files are still what they were when the window was selected."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from thaw.components import storage
from thaw.components.select_window.window import DataFile

NUM_THREADS = 16
MAX_FAULTS = 10
"""Files that one message names."""


class ChangedFileError(ValueError):
    """Pinned files are gone or have changed. The message names them."""


def check_pins(files: Sequence[DataFile]) -> None:
    """Pass files that are all as they were pinned, by size and version.

    Of files on this machine the content is read; of others the folders are listed.

    Raises:
        ChangedFileError: some are not.
        StorageError: the store cannot be read.
    """
    folders = sorted({file.uri.rpartition("/")[0] for file in files})
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = {file.path: file for listing in pool.map(storage.list_files, folders) for file in listing}
        faults = [fault for fault in pool.map(lambda file: _fault(file, found.get(file.uri)), files) if fault]
    if faults:
        more = [f"and {len(faults) - MAX_FAULTS} more files"] if len(faults) > MAX_FAULTS else []
        raise ChangedFileError("\n".join([*faults[:MAX_FAULTS], *more]))


def _fault(pinned: DataFile, found: storage.FileInfo | None) -> str | None:
    if found is None:
        return f"{pinned.uri}: in the manifest but not found"
    if found.size != pinned.size:
        return f"{pinned.uri}: {found.size} bytes, and {pinned.size} in the manifest: it changed after its selection"
    version = found.version or storage.content_version(found.path)
    if version != pinned.version:
        return f"{pinned.uri}: {version}, and {pinned.version} in the manifest: it changed after its selection"
    return None
