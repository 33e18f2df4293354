import pytest

from thaw.components.config import load
from thaw.components.runs import check_same_config
from thaw.components.runs.agreement import DECIDES, flat


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "data.window.date=2026-03-03",
        "recipe.table_lr=0.5",
        "recipe.policies=[cotrain]",
        "training.num_nodes=4",
        "evaluation.hit_k=1",
        "cluster.image=thaw:2",
    ],
)
def test_how_to_train_measure_and_run_may_differ_from_the_checkpoint(override: str) -> None:
    check_same_config(load("small").model_dump(mode="json"), load("small", [override]))


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("seed=7", "seed: 0 in the checkpoint, 7 in this run"),
        ("model.dim=64", "model.dim: 32 in the checkpoint, 64 in this run"),
        ("model.hidden_sizes=[128]", "model.hidden_sizes.1: 64 in the checkpoint, 'absent' in this run"),
        ("data.uri=gs://other", "data.uri: None in the checkpoint, 'gs://other' in this run"),
        ("data.user_table.num_rows=8", "data.user_table.num_rows: 2500 in the checkpoint, 8 in this run"),
        ("data.columns.user_id=uid", "data.columns.user_id: 'user_id' in the checkpoint, 'uid' in this run"),
    ],
)
def test_another_seed_model_or_data_is_refused_with_key_and_both_values(override: str, difference: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_same_config(load("small").model_dump(mode="json"), load("small", [override]))
    assert str(caught.value) == f"the checkpoint was trained under another configuration: {difference}"


def test_all_differences_are_named_at_once() -> None:
    other = load("small", ["seed=7", "model.dim=64", "model.num_layers=2"])
    with pytest.raises(ValueError) as caught:
        check_same_config(load("small").model_dump(mode="json"), other)
    assert all(key in str(caught.value) for key in ("seed:", "model.dim:", "model.num_layers:"))


def test_a_key_that_the_saved_document_has_not_is_a_difference() -> None:
    saved = load("small").model_dump(mode="json")
    del saved["model"]["num_layers"]
    with pytest.raises(ValueError, match=r"model\.num_layers: 'absent' in the checkpoint, 1 in this run"):
        check_same_config(saved, load("small"))


def test_every_key_of_recipe_and_backbone_decides_a_stage_and_what_decides_one_is_a_key() -> None:
    keys = {key for key, _ in flat(load("small").model_dump(mode="json"))}
    assert all(any(f"{key}.".startswith(f"{name}.") for key in keys) for name in DECIDES)
    deciding = {key for key in keys if key.startswith(("recipe.", "backbone.")) and ".policies." not in key}
    assert all(any(f"{key}.".startswith(f"{name}.") for name in DECIDES) for key in deciding)
