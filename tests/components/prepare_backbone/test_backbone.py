from datetime import UTC, date, datetime, timedelta

import pytest

from thaw.components import config, storage
from thaw.components.config import RunConfig
from thaw.components.prepare_backbone.backbone import (
    BACKBONE,
    Backbone,
    BackboneError,
    TableShape,
    read_backbone,
    refuse_unfit,
)

DATE = date(2026, 3, 2)
FIRST_DAY = date(2026, 2, 20)


def fetching(**fetch: object) -> RunConfig:
    document = config.load("small").model_dump(mode="json")
    document["backbone"] = {"fetch": {"uri": "gs://models/backbone", "max_age_days": 14} | fetch}
    return RunConfig.model_validate_json(storage.encode_json(document))


def trained_through(day: date) -> Backbone:
    return Backbone.of(config.load("small"), [day - timedelta(days=1), day])


def refuse(backbone: Backbone, document: RunConfig) -> None:
    refuse_unfit(backbone, document, DATE, FIRST_DAY, uri="gs://models/backbone")


def test_a_manifest_survives_its_file(tmp_path):
    backbone = trained_through(date(2026, 2, 19))
    storage.write_json(f"{tmp_path}/{BACKBONE}", backbone.model_dump(mode="json"))
    assert read_backbone(str(tmp_path)) == backbone
    assert backbone.trained_through == date(2026, 2, 19)
    assert backbone.engagement_days == (date(2026, 2, 18), date(2026, 2, 19))
    assert backbone.tables["user"] == TableShape(num_rows=2500, dim=32, hashed=False)
    assert backbone.created_at <= datetime.now(UTC)


def test_a_folder_without_a_manifest_is_no_backbone(tmp_path):
    with pytest.raises(BackboneError, match=r"is no backbone: backbone\.json is missing"):
        read_backbone(str(tmp_path))


def test_a_manifest_with_a_misspelt_key_is_named(tmp_path):
    storage.write_json(f"{tmp_path}/{BACKBONE}", {"trained_thru": "2026-02-19"})
    with pytest.raises(BackboneError, match=r"backbone\.json .*(?s:.*)trained_thru"):
        read_backbone(str(tmp_path))


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("day", [DATE, DATE + timedelta(days=5)])
def test_a_backbone_that_saw_the_runs_date_is_refused_always(day, allow):
    with pytest.raises(BackboneError, match=f"trained through {day}, which is not before the run's date 2026-03-02"):
        refuse(trained_through(day), fetching(allow_window_days=allow))


@pytest.mark.parametrize("day", [FIRST_DAY, DATE - timedelta(days=1)])
def test_a_backbone_that_saw_the_window_is_refused_unless_allowed(day):
    with pytest.raises(BackboneError, match=f"trained through {day}, and the window begins on 2026-02-20"):
        refuse(trained_through(day), fetching())
    refuse(trained_through(day), fetching(allow_window_days=True))


def test_age_is_counted_against_the_runs_date():
    refuse(trained_through(DATE - timedelta(days=14)), fetching())
    with pytest.raises(BackboneError, match=r"2026-02-15, 15 days before .* 2026-03-02; .*max_age_days is 14"):
        refuse(trained_through(DATE - timedelta(days=15)), fetching())


def test_a_backbone_that_the_run_pretrains_has_no_age_limit():
    refuse(trained_through(date(2025, 1, 1)), config.load("small"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_rows": 2501}, "table user has num_rows 2501, and the run's has 2500"),
        ({"dim": 16}, "table user has dim 16, and the run's has 32"),
        ({"hashed": True}, "table user has hashed True, and the run's has False"),
    ],
)
def test_another_table_is_refused_with_both_values(change, message):
    backbone = trained_through(FIRST_DAY - timedelta(days=1))
    tables = backbone.tables | {"user": backbone.tables["user"].model_copy(update=change)}
    with pytest.raises(BackboneError, match=message):
        refuse(backbone.model_copy(update={"tables": tables}), fetching())


def test_another_set_of_tables_is_refused_with_both():
    backbone = trained_through(FIRST_DAY - timedelta(days=1))
    alone = {"item": backbone.tables["item"]}
    with pytest.raises(BackboneError, match=r"its tables are \['item'\], and the run's are \['item', 'user'\]"):
        refuse(backbone.model_copy(update={"tables": alone}), fetching())


def test_a_refusal_names_the_folder_and_every_fault():
    backbone = trained_through(DATE)
    alone = backbone.model_copy(update={"tables": {}})
    with pytest.raises(BackboneError, match=r"backbone gs://models/backbone: trained through .*; its tables are \[\]"):
        refuse(alone, fetching())
