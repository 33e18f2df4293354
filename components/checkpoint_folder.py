"""When the folder of a checkpoint is complete, and which one is the newest. Torch-free: many only look for one.

    __<rank>_<k>.distcp, .metadata    tensors, written by torch.distributed.checkpoint (trainer/checkpoint.py)
    config.json                       the configuration document
    progress.json                     what had been trained: step, epoch, rows
    backbone.json                     of a backbone alone: what its tables are (prepare_backbone/backbone.py)
    complete.json                     the mark, written last

A folder without the mark is torn: its writer died. It is never the newest checkpoint and it can't be loaded.
"""

import logging
import re
from concurrent.futures import ThreadPoolExecutor

from pydantic import ValidationError

from thaw.components import storage
from thaw.components.config.section import Section

COMPLETE, CONFIG, PROGRESS = "complete.json", "config.json", "progress.json"

NUM_THREADS = 16
"""Files that are read at once."""

_STEP_FOLDER = re.compile(r"step-(\d+)")
_OWN_FILE = re.compile(
    r"__\d+_\d+\.distcp|\.metadata(\.tmp)?|(config|progress|backbone)\.json|\..+\.json\.[0-9a-f]+\.tmp"
)
_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that can't be written or read. The message names the folder, the file and both values."""


class Complete(Section):
    """The mark of a complete checkpoint."""

    world_size: int
    """Ranks that wrote it."""
    versions: dict[str, str]
    """Of torch and torchrec."""
    files: dict[str, int]
    """Size in bytes of every other file of the folder."""
    digests: dict[str, str] = {}
    """`sha256:<hex>` of their content as it was written."""
    tensors: dict[str, str]
    """Type and shape of every tensor, whole: `float32[2500, 32]`."""


def step_uri(prefix_uri: str, step: int) -> str:
    """The folder of the checkpoint after `step` optimizer steps."""
    return storage.join(prefix_uri, f"step-{step}")


def read_complete(uri: str) -> Complete:
    """The mark of a checkpoint, after every file that it lists was found in its size.

    Raises:
        CheckpointError: no mark (torn, or no checkpoint at all); a file is missing or has another size.
    """
    try:
        text = storage.read_bytes(storage.join(uri, COMPLETE))
    except FileNotFoundError:
        raise CheckpointError(
            f"{uri} is no complete checkpoint: {COMPLETE} is missing; its writer died, or the path is wrong"
        )
    try:
        complete = Complete.model_validate_json(text)
    except ValidationError as error:
        raise CheckpointError(f"{storage.join(uri, COMPLETE)} is not the mark of a checkpoint: {error}")
    found = file_sizes(uri)
    for name, size in complete.files.items():
        if found.get(name) != size:
            fault = f"has {found[name]} bytes" if name in found else "is missing"
            raise CheckpointError(
                f"checkpoint {uri}, saved by {complete.world_size} ranks: {name} {fault}, {size} bytes expected"
            )
    return complete


def check_content(uri: str) -> None:
    """Pass a complete checkpoint of which every file holds what was written. Reads all of it.

    Raises:
        CheckpointError: as `read_complete`; or a file has another digest, with both.
        StorageError: a file can't be read.
    """
    written = read_complete(uri).digests
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = pool.map(lambda name: storage.content_version(storage.join(uri, name)), written)
        for (name, digest), present in zip(written.items(), found, strict=True):
            if present != digest:
                raise CheckpointError(f"checkpoint {uri}: {name} is {present}, and was written as {digest}")


def newest_complete(prefix_uri: str) -> str | None:
    """The folder of the highest step under `prefix_uri` that has its mark; None where there is none.

    Torn folders are passed over, with a warning that names them.
    """
    steps = (_STEP_FOLDER.fullmatch(name) for name in storage.list_dirs(prefix_uri))
    for step in sorted((int(match[1]) for match in steps if match), reverse=True):
        folder = step_uri(prefix_uri, step)
        if is_complete(folder):
            return folder
        _log.warning("passing over the torn checkpoint %s: %s is missing", folder, COMPLETE)
    return None


def clear_torn(uri: str) -> None:
    """Make room for a checkpoint: remove what a dead writer left in the folder.

    Raises:
        CheckpointError: the folder holds a complete checkpoint, or a file that no checkpoint has.
    """
    if is_complete(uri):
        raise CheckpointError(f"checkpoint {uri} is complete already and is never overwritten; save to another folder")
    names = file_sizes(uri)
    if not names:
        return
    if foreign := sorted(name for name in names if not _OWN_FILE.fullmatch(name)):
        raise CheckpointError(f"{uri} holds {foreign[0]}, which is no part of a checkpoint; save to an empty folder")
    _log.warning("removing the torn checkpoint %s: %s is missing", uri, COMPLETE)
    filesystem, path = storage.open_filesystem(uri)
    filesystem.rm(path, recursive=True)


def is_complete(uri: str) -> bool:
    """Whether the folder has its mark."""
    return storage.exists(storage.join(uri, COMPLETE))


def file_sizes(uri: str) -> dict[str, int]:
    """Size in bytes of every file below the folder, by its path in it."""
    folder = storage.join(uri, "")
    return {file.path.removeprefix(folder): file.size for file in storage.list_files(uri)}
