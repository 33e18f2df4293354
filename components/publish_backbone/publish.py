"""Copies a backbone to where runs fetch it: a folder of `backbone.fetch.prefix_uri`, as `fetch_backbone` reads it.

    <prefix>/<name>/__<rank>_<k>.distcp, .metadata, config.json, progress.json    as the trainer left them
    <prefix>/<name>/backbone.json                                                 what its tables are
    <prefix>/<name>/complete.json                                                 the mark, written last

Until the mark is there, the folder is torn, and who looks for a backbone passes it over.
"""

from contextlib import suppress

from thaw.components import storage
from thaw.components.checkpoint_folder import COMPLETE, CheckpointError, file_sizes, read_complete
from thaw.components.prepare_backbone.backbone import BACKBONE, Backbone, read_backbone


def publish(source_uri: str, uri: str) -> Backbone:
    """Copy a complete backbone to a folder of its own. What was published stays as it is; twice is the same as once.

    Args:
        source_uri: Folder of the backbone.
        uri: Folder to be.

    Returns:
        Its manifest.

    Raises:
        CheckpointError: the source is torn, or the copy isn't whole.
        BackboneError: the source is a checkpoint, and no backbone.
        FileExistsError: another backbone is published there.
        StorageError: it can't be read or written.
    """
    complete, backbone = read_complete(source_uri), read_backbone(source_uri)
    mark, mark_uri = storage.read_bytes(storage.join(source_uri, COMPLETE)), storage.join(uri, COMPLETE)
    if not storage.exists(mark_uri):
        for name in sorted(complete.files, key=lambda name: (name == BACKBONE, name)):
            storage.copy_file(storage.join(source_uri, name), storage.join(uri, name))
        found = file_sizes(uri)
        if wrong := sorted(name for name, size in complete.files.items() if found.get(name) != size):
            raise CheckpointError(f"{uri}: {wrong[0]} is not the copy of {storage.join(source_uri, wrong[0])}")
        with suppress(FileExistsError):  # another try of the same was faster
            storage.create_bytes(mark_uri, mark)
    if (present := storage.read_bytes(mark_uri)) != mark:
        raise FileExistsError(
            f"{uri} is another backbone ({COMPLETE} is {storage.digest(present)}, and {storage.digest(mark)} was to be "
            f"published); publish under another name"
        )
    return backbone
