import json
import logging
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from thaw.components import config, storage
from thaw.components.checkpoint_folder import COMPLETE, CheckpointError, Complete
from thaw.components.config import RunConfig
from thaw.components.prepare_backbone.backbone import BACKBONE, Backbone, BackboneError
from thaw.components.prepare_backbone.fetch import fetch_backbone

DATE = date(2026, 3, 2)
FIRST_DAY = date(2026, 2, 20)


def fetching(**fetch: object) -> RunConfig:
    document = config.load("small").model_dump(mode="json")
    document["backbone"] = {"fetch": fetch}
    return RunConfig.model_validate_json(storage.encode_json(document))


def publish(folder: Path, day: date, *, hour: int = 0, torn: bool = False, num_rows: int | None = None) -> str:
    """The folder of a backbone, as the trainer leaves it; its tensors are a few bytes."""
    backbone = Backbone.of(config.load("small"), [day])
    backbone = backbone.model_copy(update={"created_at": datetime(2026, 3, 1, hour, tzinfo=UTC)})
    if num_rows:
        tables = backbone.tables | {"item": backbone.tables["item"].model_copy(update={"num_rows": num_rows})}
        backbone = backbone.model_copy(update={"tables": tables})
    storage.write_bytes(f"{folder}/__0_0.distcp", b"tensors")
    storage.write_json(f"{folder}/{BACKBONE}", backbone.model_dump(mode="json"))
    if not torn:
        files = {path.name: path.stat().st_size for path in folder.iterdir()}
        mark = Complete(world_size=1, versions={}, files=files, tensors={})
        storage.write_json(f"{folder}/{COMPLETE}", mark.model_dump(mode="json"))
    return str(folder)


def test_the_newest_is_the_one_that_saw_the_latest_day(tmp_path):
    publish(tmp_path / "a", date(2026, 2, 17), hour=5)
    newest = publish(tmp_path / "b", date(2026, 2, 18), hour=1)
    publish(tmp_path / "c", date(2026, 2, 16), hour=9)
    uri, backbone = fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)
    assert (uri, backbone.trained_through) == (newest, date(2026, 2, 18))


def test_of_two_that_saw_the_same_day_the_younger_is_taken(tmp_path):
    younger = publish(tmp_path / "a", date(2026, 2, 18), hour=5)
    publish(tmp_path / "b", date(2026, 2, 18), hour=1)
    assert fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)[0] == younger


def test_a_rerun_of_an_old_date_passes_over_what_was_published_since(tmp_path):
    then = publish(tmp_path / "then", date(2026, 2, 18))
    publish(tmp_path / "since", date(2026, 3, 5))
    publish(tmp_path / "in-the-window", date(2026, 2, 25))
    assert fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)[0] == then


def test_days_of_the_window_count_as_newer_where_they_are_allowed(tmp_path):
    publish(tmp_path / "before", date(2026, 2, 18))
    inside = publish(tmp_path / "in-the-window", date(2026, 2, 25))
    document = fetching(prefix_uri=str(tmp_path), allow_window_days=True)
    assert fetch_backbone(document, DATE, FIRST_DAY)[0] == inside


def test_a_torn_backbone_is_passed_over_with_a_warning(tmp_path, caplog):
    whole = publish(tmp_path / "a", date(2026, 2, 17))
    torn = publish(tmp_path / "b", date(2026, 2, 18), torn=True)
    (tmp_path / "notes").mkdir()
    with caplog.at_level(logging.WARNING):
        assert fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)[0] == whole
    assert torn in caplog.text
    assert "notes" not in caplog.text


def test_none_fit_is_an_error_with_the_reason_of_each(tmp_path):
    publish(tmp_path / "old", date(2026, 2, 1))
    publish(tmp_path / "late", date(2026, 3, 2))
    with pytest.raises(BackboneError) as refusal:
        fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)
    message = str(refusal.value)
    assert f"no fit backbone under {tmp_path}" in message
    assert "old: trained through 2026-02-01, 29 days before the run's date 2026-03-02" in message
    assert "late: trained through 2026-03-02, which is not before the run's date 2026-03-02" in message


def test_an_empty_prefix_is_an_error(tmp_path):
    with pytest.raises(BackboneError, match=f"no fit backbone under {tmp_path}/nothing"):
        fetch_backbone(fetching(prefix_uri=f"{tmp_path}/nothing"), DATE, FIRST_DAY)


def test_the_newest_with_other_tables_is_an_error_and_no_older_one_takes_its_place(tmp_path):
    publish(tmp_path / "a", date(2026, 2, 17))
    publish(tmp_path / "b", date(2026, 2, 18), num_rows=6000)
    with pytest.raises(BackboneError, match=r"/b: table item has num_rows 6000, and the run's has 5000"):
        fetch_backbone(fetching(prefix_uri=str(tmp_path)), DATE, FIRST_DAY)


def test_a_named_backbone_is_checked_like_any(tmp_path):
    uri = publish(tmp_path / "a", date(2026, 2, 17))
    assert fetch_backbone(fetching(uri=uri), DATE, FIRST_DAY)[0] == uri
    with pytest.raises(BackboneError, match="15 days before"):
        fetch_backbone(fetching(uri=uri), date(2026, 3, 4), FIRST_DAY)


def test_a_named_backbone_that_is_torn_or_cut_is_refused(tmp_path):
    torn = publish(tmp_path / "torn", date(2026, 2, 17), torn=True)
    with pytest.raises(CheckpointError, match=r"torn .*complete\.json is missing"):
        fetch_backbone(fetching(uri=torn), DATE, FIRST_DAY)
    cut = publish(tmp_path / "cut", date(2026, 2, 17))
    (tmp_path / "cut" / "__0_0.distcp").write_bytes(b"tensor")
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp has 6 bytes, 7 bytes expected"):
        fetch_backbone(fetching(uri=cut), DATE, FIRST_DAY)


def test_a_mark_that_is_no_mark_is_refused(tmp_path):
    uri = publish(tmp_path / "a", date(2026, 2, 17))
    (tmp_path / "a" / COMPLETE).write_text(json.dumps({"files": {}}))
    with pytest.raises(CheckpointError, match=r"complete\.json is not the mark of a checkpoint"):
        fetch_backbone(fetching(uri=uri), DATE, FIRST_DAY)


def test_a_backbone_of_which_one_bit_was_turned_is_refused_with_both_digests(tmp_path):
    uri = publish(tmp_path / "a", date(2026, 2, 17))
    mark = json.loads((tmp_path / "a" / COMPLETE).read_text())
    mark["digests"] = {"__0_0.distcp": storage.digest(b"tensors")}
    (tmp_path / "a" / COMPLETE).write_text(json.dumps(mark))
    assert fetch_backbone(fetching(uri=uri), DATE, FIRST_DAY)[0] == uri
    (tmp_path / "a" / "__0_0.distcp").write_bytes(b"tensorr")
    with pytest.raises(CheckpointError) as refusal:
        fetch_backbone(fetching(uri=uri), DATE, FIRST_DAY)
    for content in (b"tensors", b"tensorr"):
        assert storage.digest(content) in str(refusal.value)
