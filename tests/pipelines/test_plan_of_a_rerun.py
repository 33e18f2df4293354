"""What a rerun may change, on runs whose stages left nothing but their manifests."""

from pathlib import Path

import pytest

from thaw.components import runs, storage
from thaw.components.config import load
from thaw.pipelines.rerun import plan_rerun

BACKBONES = "backbone.publish_prefix_uri=/backbones"
GATE = "promotion={head: click, metric: auc, minimum: 0.2}"


def finished(root: Path, run_id: str, *overrides: str, kind: str = "whole") -> Path:
    """A run whose stages are all committed."""
    config = load("small", [BACKBONES, *overrides])
    run_uri = runs.create_run(str(root), run_id, config, {"date": "2026-03-02", "kind": kind})
    inputs: dict[str, str] = {}
    for name in runs.config_stages(config, kind):
        with runs.stage(config, run_uri, name, inputs) as current:
            storage.write_bytes(storage.join(current.uri, "output.json"), name.encode())
            window = {"date": "2026-03-02", "fingerprint": "sha256:0"}
            current.commit(outputs={"output": "output.json"}, window=window)
        inputs = {"window": inputs.get("window", current.uri), "parent": current.uri}
    return Path(run_uri)


@pytest.mark.parametrize(
    ("stage", "override", "words"),
    [
        ("evaluate", "recipe.table_lr=0.5", "recipe.table_lr: 0.05 in the parent, 0.5 in this run: begin at train-cot"),
        ("evaluate", "recipe.dense_lr=0.5", "recipe.dense_lr: .*: begin at train-cotrain or before"),
        ("promote", "training.global_batch_size=64", "training.global_batch_size: .* begin at train-cotrain or before"),
        ("evaluate", "training.staleness=0", "training.staleness: 1 in the parent, 0 in this run: begin at train-co"),
        ("evaluate", "training.shuffle=false", "training.shuffle: True in the parent, False in this run: begin at tr"),
        ("evaluate", "backbone.pretrain.num_epochs=9", "backbone.pretrain.num_epochs: .*: begin at prepare-backbone"),
        ("train-cotrain", "backbone.pretrain.num_epochs=9", "pretrain.num_epochs: .*: begin at prepare-backbone"),
        ("train-cotrain", "backbone={fetch: {uri: x}}", "backbone.fetch.uri: .*: begin at prepare-backbone or before"),
        ("promote", "evaluation.hit_k=9", "evaluation.hit_k: 3 in the parent, 9 in this run: begin at evaluate"),
        (
            "evaluate",
            "recipe.policies=[cotrain,frozen]",
            "recipe.policies: .'frozen', 'cotrain'. in the parent, .* begin",
        ),
        ("evaluate", "recipe.policies=[cotrain]", "recipe.policies: .*: begin at train-cotrain or before"),
        (
            "train-cotrain-2",
            "recipe.policies=[cotrain,cotrain]",
            "recipe.policies: .*: begin at train-cotrain or before",
        ),
    ],
)
def test_what_only_decides_the_stages_that_are_done_may_not_change(
    tmp_path: Path, stage: str, override: str, words: str
) -> None:
    finished(tmp_path, "r", GATE)
    with pytest.raises(ValueError, match=words):
        plan_rerun(str(tmp_path), "r", stage, overrides=(override,))


@pytest.mark.parametrize(
    ("stage", "override"),
    [
        ("evaluate", "evaluation.hit_k=9"),
        ("evaluate", "promotion={head: save, metric: auc, minimum: 0.9}"),
        ("evaluate", "cluster.image=thaw:2"),
        ("evaluate", "training.num_workers=2"),
        ("evaluate", "training.checkpoint_every_steps=5"),
        ("evaluate", "training.num_nodes=1"),
        ("evaluate", "training.row_ledger=true"),
        ("evaluate", "recipe.policies=[frozen]"),
        ("train-cotrain", "recipe.table_lr=0.5"),
        ("train-cotrain", "recipe.dense_lr=0.5"),
        ("train-cotrain", "training.staleness=0"),
        ("train-frozen", "recipe.policies=[frozen,frozen]"),
        ("train-frozen", "training.shuffle=false"),
        ("prepare-backbone", "backbone.pretrain.num_epochs=9"),
    ],
)
def test_what_a_stage_to_come_reads_and_what_decides_no_result_may_change(
    tmp_path: Path, stage: str, override: str
) -> None:
    finished(tmp_path, "r")
    assert plan_rerun(str(tmp_path), "r", stage, overrides=(override,)).kind == f"from:{stage}"


def test_all_that_may_not_change_is_named_at_once(tmp_path: Path) -> None:
    finished(tmp_path, "r")
    with pytest.raises(ValueError) as caught:
        plan_rerun(str(tmp_path), "r", "evaluate", overrides=("recipe.table_lr=0.5", "recipe.policies=[cotrain]"))
    assert all(key in str(caught.value) for key in ("done before evaluate", "recipe.table_lr:", "recipe.policies:"))


@pytest.mark.parametrize("stage", runs.BACKBONE_STAGES)
def test_a_run_that_published_a_backbone_is_repeated_as_one(tmp_path: Path, stage: str) -> None:
    finished(tmp_path, "b", kind="backbone")
    plan = plan_rerun(str(tmp_path), "b", stage)
    assert runs.config_stages(plan.config, plan.kind) == runs.BACKBONE_STAGES[runs.BACKBONE_STAGES.index(stage) :]
    again = runs.create_run(str(tmp_path), "again", plan.config, plan.extra())
    assert [found.stage for found in runs.run_status(again).stages][-1] == "publish-backbone"
    only = plan_rerun(str(tmp_path), "again", stage, only=True) if stage == "select-window" else None
    assert only is None or only.kind == "backbone:stage:select-window"


def test_a_run_that_published_a_backbone_trained_and_evaluated_nothing(tmp_path: Path) -> None:
    finished(tmp_path, "b", kind="backbone")
    with pytest.raises(
        ValueError, match="the stages of this configuration are select-window, prepare-backbone, publish-"
    ):
        plan_rerun(str(tmp_path), "b", "evaluate")
    with pytest.raises(ValueError, match=r"training\.shuffle: .*: begin at prepare-backbone or before"):
        plan_rerun(str(tmp_path), "b", "publish-backbone", overrides=("training.shuffle=false",))
    plan_rerun(str(tmp_path), "b", "publish-backbone", overrides=("backbone.publish_prefix_uri=/elsewhere",))
