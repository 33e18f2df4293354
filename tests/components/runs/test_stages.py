import pytest

from thaw.components.config import load
from thaw.components.refused import RefusedError
from thaw.components.runs import BACKBONE_STAGES, config_stages, recorded_stages, stage_names

CONFIG = load("small", ["backbone.publish_prefix_uri=gs://bucket/backbones"])
GATE = "promotion={head: click, metric: auc, minimum: 0}"


@pytest.mark.parametrize(
    ("policies", "names"),
    [
        (("frozen", "cotrain"), ("train-frozen", "train-cotrain")),
        (("cotrain",), ("train-cotrain",)),
        (("frozen", "frozen"), ("train-frozen", "train-frozen-2")),
        (("cotrain", "cotrain"), ("train-cotrain", "train-cotrain-2")),
    ],
)
def test_every_epoch_has_a_stage_of_its_own(policies: tuple, names: tuple) -> None:
    assert stage_names(policies) == names


def test_a_run_is_promoted_where_its_configuration_has_a_gate() -> None:
    assert config_stages(CONFIG)[-1] == "evaluate"
    assert config_stages(load("small", [GATE]))[-2:] == ("evaluate", "promote")


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("from:train-cotrain", ("train-cotrain", "evaluate")),
        ("stage:train-frozen", ("train-frozen",)),
        ("from:select-window", config_stages(CONFIG)),
        ("backbone", BACKBONE_STAGES),
        ("backbone:from:prepare-backbone", BACKBONE_STAGES[1:]),
        ("backbone:stage:select-window", BACKBONE_STAGES[:1]),
    ],
)
def test_a_kind_names_the_stages_that_a_run_does_itself(kind: str, stages: tuple) -> None:
    assert config_stages(CONFIG, kind) == stages
    assert recorded_stages(CONFIG.model_dump(mode="json"), {"kind": kind}) == stages


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], r"backbone\.publish_prefix_uri is not set"),
        (["backbone={fetch: {uri: x}, publish_prefix_uri: y}"], "the document fetches its backbone"),
    ],
)
def test_a_run_that_has_no_backbone_to_publish_or_no_place_for_it_is_refused(overrides: list, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        config_stages(load("small", overrides), "backbone")


def test_a_record_without_a_kind_is_of_a_whole_run() -> None:
    document = CONFIG.model_dump(mode="json")
    del document["promotion"]
    assert recorded_stages(document, {}) == config_stages(CONFIG)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("from:train", "stage 'train': the stages of this configuration are select-window, prepare-backbone"),
        ("stage:promote", "stage 'promote': the stages"),
        ("evaluate", "kind 'evaluate': give whole, backbone, from:<stage>, stage:<stage>, "),
        ("backbone:evaluate", "kind .backbone:evaluate.: give whole, backbone, from:<stage>"),
        ("backbone:from:evaluate", "stage .evaluate.: the stages of this configuration are .*, publish-backbone"),
    ],
)
def test_another_kind_or_stage_is_refused(kind: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        config_stages(CONFIG, kind)
