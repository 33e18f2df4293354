"""What a stage's outputs hold, told by digests, so that a later run knows them again."""

from thaw.components import storage
from thaw.components.checkpoint_folder import COMPLETE, check_content, read_complete
from thaw.components.refused import RefusedError
from thaw.components.runs.manifest import Reference, StageManifest, output_uri


class ChangedOutputError(RefusedError):
    """What a stage left is no longer what it was. The message names stage, path and both digests."""


def content_digest(uri: str) -> str | None:
    """`sha256:<hex>` of a file; of a checkpoint, of its mark, which has its files' digests; None of other folders.

    Raises:
        StorageError: it cannot be read.
    """
    if storage.is_file(uri):
        return storage.content_version(uri)
    try:
        return storage.digest(storage.read_bytes(storage.join(uri, COMPLETE)))
    except FileNotFoundError:
        return None


def check_attempt(reference: Reference, manifest: StageManifest, *, whole: bool = True) -> None:
    """Pass an attempt whose outputs are all what its stage left; as `check_output`."""
    if not manifest.digests:
        raise ChangedOutputError(
            f"{manifest.stage} of run {manifest.run_id}: {reference.uri} was written before outputs had digests, so it "
            f"can't be known again; start at an earlier stage"
        )
    for name in manifest.digests:
        check_output(reference, manifest, name, whole=whole)


def check_output(reference: Reference, manifest: StageManifest, name: str, *, whole: bool = True) -> None:
    """Pass an output that is still what its stage left.

    Args:
        reference: The attempt.
        manifest: Its manifest.
        name: Of the output.
        whole: Read a checkpoint's every file too, else only its mark and the sizes that it lists.

    Raises:
        ChangedOutputError: it is gone, or is another; with both digests.
        CheckpointError: a file of the checkpoint is missing or holds something else, with both digests.
    """
    uri = output_uri(reference.uri, manifest, name)
    written, whose = manifest.digests.get(name), f"{manifest.stage} of run {manifest.run_id}"
    if written is None:
        raise ChangedOutputError(f"{whose}: the manifest in {reference.uri} has no digest of {name}")
    if not storage.exists(uri):
        raise ChangedOutputError(f"{whose}: {uri} is not there; it was written as {written}")
    is_checkpoint = not storage.is_file(uri)
    place, present = storage.join(uri, COMPLETE) if is_checkpoint else uri, content_digest(uri)
    if present is None:
        raise ChangedOutputError(f"{whose}: {place} is not there; it was written as {written}")
    if present != written:
        raise ChangedOutputError(f"{whose}: {place} is {present}, and was written as {written}")
    if is_checkpoint:
        check_content(uri) if whole else read_complete(uri)
