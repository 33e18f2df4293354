from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.checkpoint_folder import CheckpointError, Complete
from thaw.components.config import load
from thaw.components.runs import ChangedOutputError, Reference, StageManifest, check_attempt, read_manifest, stage

CONFIG = load("small")


def write_checkpoint(uri: str, content: bytes = b"tensors") -> None:
    storage.write_bytes(storage.join(uri, "__0_0.distcp"), content)
    mark = Complete(
        world_size=1,
        versions={},
        files={"__0_0.distcp": len(content)},
        digests={"__0_0.distcp": storage.digest(content)},
        tensors={},
    )
    storage.write_json(storage.join(uri, "complete.json"), mark.model_dump(mode="json"))


def commit(store_uri: str) -> tuple[Reference, StageManifest]:
    """A stage with each kind of output."""
    with stage(CONFIG, storage.join(store_uri, "runs", "r"), "evaluate") as current:
        storage.write_bytes(storage.join(current.uri, "metrics.json"), b"{}")
        write_checkpoint(storage.join(current.uri, "model"))
        storage.write_bytes(storage.join(current.uri, "predictions", "part-0.parquet"), b"scores")
        write_checkpoint(storage.join(store_uri, "published"))
        outputs = {"metrics": "metrics.json", "model": "model", "predictions": "predictions"}
        reference = current.commit(outputs={**outputs, "elsewhere": storage.join(store_uri, "published")})
    return reference, read_manifest(reference.uri)[0]


def test_files_and_checkpoints_have_digests_wherever_they_lie(store_uri: str) -> None:
    reference, manifest = commit(store_uri)
    mark = storage.read_bytes(storage.join(reference.uri, "model", "complete.json"))
    assert manifest.digests == {
        "metrics": storage.digest(b"{}"),
        "model": storage.digest(mark),
        "elsewhere": storage.digest(mark),
    }
    check_attempt(reference, manifest)


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("metrics.json", b"[]", ChangedOutputError, "metrics.json is sha256:"),
        ("metrics.json", None, ChangedOutputError, "metrics.json is not there; it was written as sha256:"),
        ("model/complete.json", b"[]", ChangedOutputError, "model/complete.json is sha256:"),
        ("model/complete.json", None, ChangedOutputError, "complete.json is not there; it was written as sha256:"),
        ("model/__0_0.distcp", b"tensorS", CheckpointError, "__0_0.distcp is sha256:"),
        ("model/__0_0.distcp", b"tensor", CheckpointError, "__0_0.distcp has 6 bytes, 7 bytes expected"),
    ],
)
def test_an_output_that_is_gone_or_another_is_named_with_both_digests(
    store_uri: str, name: str, content: bytes | None, error: type[Exception], words: str
) -> None:
    reference, manifest = commit(store_uri)
    uri = storage.join(reference.uri, name)
    if content is None:
        filesystem, path = storage.open_filesystem(uri)
        filesystem.rm(path)
    else:
        storage.write_bytes(uri, content)
    with pytest.raises(error) as caught:
        check_attempt(reference, manifest)
    assert words in str(caught.value) and reference.uri in str(caught.value)


def test_the_files_of_a_checkpoint_can_be_left_unread_but_not_uncounted(tmp_path: Path) -> None:
    reference, manifest = commit(str(tmp_path))
    tensors = storage.join(reference.uri, "model", "__0_0.distcp")
    storage.write_bytes(tensors, b"tensorS")
    check_attempt(reference, manifest, whole=False)
    storage.write_bytes(tensors, b"tensor")
    with pytest.raises(CheckpointError, match="has 6 bytes, 7 bytes expected"):
        check_attempt(reference, manifest, whole=False)


def test_an_attempt_without_digests_cannot_be_known_again(tmp_path: Path) -> None:
    reference, manifest = commit(str(tmp_path))
    with pytest.raises(ChangedOutputError, match=r"evaluate of run r: .* was written before outputs had digests"):
        check_attempt(reference, manifest.model_copy(update={"digests": {}}))
