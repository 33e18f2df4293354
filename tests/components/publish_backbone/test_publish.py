from datetime import date
from pathlib import Path
from typing import Any

import pytest

from thaw.components import storage
from thaw.components.checkpoint_folder import COMPLETE, CheckpointError, Complete
from thaw.components.config import load, to_parameter
from thaw.components.prepare_backbone.backbone import BACKBONE, Backbone, BackboneError
from thaw.components.prepare_backbone.fetch import fetch_backbone
from thaw.components.publish_backbone.publish import publish
from thaw.components.publish_backbone.step import run
from thaw.components.refused import RefusedError
from thaw.components.runs import read_manifest, stage

DATE, FIRST_DAY = date(2026, 3, 2), date(2026, 2, 20)


def pretrained(uri: str, tensors: bytes = b"tensors") -> str:
    """A backbone, as the trainer leaves it; its tensors are a few bytes."""
    backbone = Backbone.of(load("small"), [date(2026, 2, 18)])
    files = {"__0_0.distcp": tensors, BACKBONE: storage.encode_json(backbone.model_dump(mode="json"))}
    for name, content in files.items():
        storage.write_bytes(storage.join(uri, name), content)
    mark = Complete(
        world_size=1,
        versions={},
        files={name: len(content) for name, content in files.items()},
        digests={name: storage.digest(content) for name, content in files.items()},
        tensors={},
    )
    storage.write_json(storage.join(uri, COMPLETE), mark.model_dump(mode="json"))
    return uri


def fetched(prefix_uri: str) -> str:
    config = load("small", ["backbone.pretrain=null", f"backbone.fetch={{prefix_uri: '{prefix_uri}'}}"])
    return fetch_backbone(config, DATE, FIRST_DAY)[0]


def test_what_is_published_is_fetched(store_uri: str) -> None:
    source = pretrained(storage.join(store_uri, "model"))
    uri = storage.join(store_uri, "backbones", "one")
    assert publish(source, uri).trained_through == date(2026, 2, 18)
    assert fetched(storage.join(store_uri, "backbones")) == uri


def test_twice_is_the_same_as_once_and_another_backbone_never_takes_its_place(store_uri: str) -> None:
    uri = storage.join(store_uri, "backbones", "one")
    source = pretrained(storage.join(store_uri, "model"))
    publish(source, uri)
    before = storage.list_files(uri)
    publish(source, uri)
    assert storage.list_files(uri) == before
    with pytest.raises(FileExistsError, match=f"{uri} is another backbone"):
        publish(pretrained(storage.join(store_uri, "other"), b"TENSORS"), uri)
    assert storage.list_files(uri) == before


def test_a_backbone_travels_between_stores(tmp_path: Path, gcs_uri: str) -> None:
    there = storage.join(gcs_uri, "backbones", "one")
    publish(pretrained(str(tmp_path / "model")), there)
    assert fetched(storage.join(gcs_uri, "backbones")) == there
    publish(there, str(tmp_path / "backbones/two"))
    assert fetched(str(tmp_path / "backbones")) == str(tmp_path / "backbones/two")


def test_what_a_dead_publisher_left_is_passed_over_until_another_try_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, uri = pretrained(str(tmp_path / "model")), str(tmp_path / "backbones/one")
    copy_file = storage.copy_file

    def dies_at_the_manifest(source_uri: str, uri: str) -> None:
        if uri.endswith(BACKBONE):
            raise storage.StorageError(uri, "no room")
        copy_file(source_uri, uri)

    with monkeypatch.context() as patched, pytest.raises(storage.StorageError):
        patched.setattr(storage, "copy_file", dies_at_the_manifest)
        publish(source, uri)
    assert [path.name for path in Path(uri).iterdir()] == ["__0_0.distcp"]
    with pytest.raises(BackboneError, match="no fit backbone"):
        fetched(str(tmp_path / "backbones"))
    publish(source, uri)
    assert fetched(str(tmp_path / "backbones")) == uri


def test_a_torn_source_and_a_checkpoint_that_is_no_backbone_are_refused(tmp_path: Path) -> None:
    source = Path(pretrained(str(tmp_path / "model")))
    (source / COMPLETE).rename(source / "aside")
    with pytest.raises(CheckpointError, match=r"complete\.json is missing"):
        publish(str(source), str(tmp_path / "backbones/one"))
    assert not (tmp_path / "backbones").exists()


class Artifact:
    def __init__(self, uri: str):
        self.uri = uri
        self.metadata: dict[str, Any] = {}


def prepared(root: Path) -> tuple[str, str]:
    """A run whose backbone is committed: its folder, and that of the attempt."""
    run_uri = str(root / "runs/weekly-2026-03-02")
    with stage(load("small"), run_uri, "prepare-backbone") as current:
        pretrained(storage.join(current.uri, "model"))
        current.commit(outputs={"model": "model"}, window={"date": "2026-03-02"})
    return run_uri, current.uri


def test_the_step_publishes_under_the_runs_name_and_is_done_once(tmp_path: Path) -> None:
    run_uri, backbone = prepared(tmp_path)
    config = to_parameter(load("small", [f"backbone.publish_prefix_uri={tmp_path}/backbones"]))
    for _ in range(2):
        run(config, run_uri, Artifact(backbone))
    assert [path.name for path in Path(run_uri, "publish-backbone").iterdir()] == ["attempt-1"]
    manifest, _ = read_manifest(f"{run_uri}/publish-backbone/attempt-1")
    assert manifest.outputs == {"model": f"{tmp_path}/backbones/weekly-2026-03-02"}
    assert manifest.figures == {"trained_through": "2026-02-18"}
    assert fetched(f"{tmp_path}/backbones") == manifest.outputs["model"]


def test_without_a_place_to_publish_the_step_is_refused(tmp_path: Path) -> None:
    run_uri, backbone = prepared(tmp_path)
    with pytest.raises(RefusedError, match=r"backbone\.publish_prefix_uri is not set"):
        run(to_parameter(load("small")), run_uri, Artifact(backbone))
