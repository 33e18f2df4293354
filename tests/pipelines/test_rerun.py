"""A run, done again from several stages on: real processes, one rank, a log that is small enough for seconds."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from thaw.components import runs
from thaw.components.checkpoint_folder import CheckpointError
from thaw.components.promote.claims import latest
from thaw.components.runs import ChangedOutputError, NotCommittedError, Reference
from thaw.pipelines.rerun import plan_rerun

pytestmark = pytest.mark.timeout(600)
"""Of the first test above all, which pays for the run that the others repeat."""

THAW = [str(Path(sys.executable).with_name("thaw"))]
TINY = (
    "data.window.num_days=2",
    "evaluation={num_train_requests: 200, batch_size: 1000}",
    "training.num_nodes=1",
    "promotion={head: click, metric: auc, minimum: 0.2}",
)


def thaw(*arguments: str, overrides: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    sets = [part for override in overrides for part in ("--set", override)]
    return subprocess.run([*THAW, *arguments, *sets], capture_output=True, text=True, timeout=500)


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with run b, which published a backbone, and run r, which fetched it; kfp.local would rewrite its path."""
    root = tmp_path_factory.mktemp("python3 root")
    backbones = f"'{root}/backbones'"
    for run_id, kind, backbone in (
        ("b", "backbone", f"{{pretrain: {{num_days: 2, num_epochs: 1}}, publish_prefix_uri: {backbones}}}"),
        ("r", "whole", f"{{fetch: {{prefix_uri: {backbones}}}}}"),
    ):
        command = ("run", "--preset", "small", "--kind", kind, "--root", str(root), "--run-id", run_id)
        done = thaw(*command, overrides=(*TINY, f"backbone={backbone}"))
        assert done.returncode == 0, done.stdout + done.stderr
    return root


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = digests(folder)
    yield
    assert digests(folder) == before


def rerun(root: Path, run_id: str, stage: str, *arguments: str, overrides: tuple[str, ...] = ()) -> str:
    """A rerun of r; what it printed."""
    with untouched(root / "runs/r"):
        command = ("rerun", "--run", "r", "--stage", stage, "--run-id", run_id, "--root", str(root), *arguments)
        done = thaw(*command, overrides=overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def manifest(root: Path, run_id: str, stage: str) -> runs.StageManifest:
    return runs.read_manifest(f"{root}/runs/{run_id}/{stage}/attempt-1")[0]


def reference(root: Path, run_id: str, stage: str) -> Reference:
    uri = f"{root}/runs/{run_id}/{stage}/attempt-1"
    return Reference(uri=uri, digest=runs.read_manifest(uri)[1])


def parent(root: Path, run_id: str) -> dict[str, Any]:
    return json.loads((root / f"runs/{run_id}/run.json").read_text())["extra"]["parent"]


def stages(root: Path, run_id: str) -> set[str]:
    return {path.name for path in (root / "runs" / run_id).iterdir() if path.is_dir()}


@pytest.fixture(scope="module")
def evaluated(root: Path) -> str:
    return rerun(root, "e", "evaluate", overrides=("evaluation.hit_k=2",))


@pytest.fixture(scope="module")
def cotrained(root: Path) -> str:
    return rerun(root, "c", "train-cotrain")


def test_a_backbone_that_one_run_published_is_where_another_begins(root: Path) -> None:
    assert stages(root, "b") == {"select-window", "prepare-backbone", "publish-backbone"}
    assert runs.run_status(f"{root}/runs/b").state == "committed"
    published, fetched = manifest(root, "b", "publish-backbone"), manifest(root, "r", "prepare-backbone")
    assert published.outputs == fetched.outputs == {"model": f"{root}/backbones/b"}
    made = manifest(root, "b", "prepare-backbone")
    assert made.digests == published.digests == fetched.digests
    begun_with = manifest(root, "r", "train-frozen").figures["checksums_before"]
    for table in ("table/user", "table/item"):
        assert begun_with[table] == made.figures["checksums_after"][table]


def test_evaluate_again_measures_the_same_model_and_nothing_before_it_is_done(root: Path, evaluated: str) -> None:
    assert stages(root, "e") == {"evaluate", "promote"}
    window, model = (reference(root, "r", stage) for stage in ("select-window", "train-cotrain"))
    again, before = manifest(root, "e", "evaluate"), manifest(root, "r", "evaluate")
    assert again.inputs == {"window": window, "model": model}
    for figure in ("click_auc", "save_auc", "click_log_loss", "hide_ne"):
        assert again.figures[figure] == before.figures[figure]
    assert "click_hit_at_2" in again.figures and "click_hit_at_3" in before.figures
    expected = {"select-window": window.model_dump(), "train-cotrain": model.model_dump()}
    assert parent(root, "e") == {"run": "r", "stage": "evaluate", "inputs": expected}
    assert "of run r" in (root / "runs/e/evaluate/attempt-1/report.html").read_text()


def test_the_first_run_of_a_date_is_promoted_and_another_one_says_why_it_is_not(root: Path, evaluated: str) -> None:
    promoted = latest(str(root))
    assert promoted is not None and (promoted.run_id, promoted.by) == ("r", "gate")
    assert promoted.evaluate == reference(root, "r", "evaluate")
    assert "not promoted: 2026-03-02 is claimed by run r" in evaluated
    assert "2026-03-02 is claimed by run r" in thaw("why", "e", "--root", str(root)).stdout
    by_hand = thaw("promote", "e", "--root", str(root))
    assert by_hand.returncode == 1 and "claimed by run r" in by_hand.stderr


def test_a_rerun_is_listed_with_what_it_repeats_and_is_compared_with_it(root: Path, evaluated: str) -> None:
    listed = {line.split()[0]: line for line in thaw("runs", "--root", str(root)).stdout.splitlines()}
    assert "r from evaluate" in listed["e"]
    assert all(" committed " in listed[run_id] for run_id in ("b", "r", "e"))
    assert "runs/e/evaluate/attempt-1/report.html" in listed["e"] and "report.html" not in listed["b"]
    compared = thaw("diff", "r", "e", "--root", str(root)).stdout
    assert "window: equal, D = 2026-03-02" in compared and "versions: equal" in compared
    (changed,) = (line.split() for line in compared.splitlines() if line.startswith("evaluation."))
    assert changed == ["evaluation.hit_k", "3", "2"]


def test_cotraining_again_begins_with_the_frozen_epoch_of_the_parent_and_later_stages_follow(
    root: Path, cotrained: str
) -> None:
    assert stages(root, "c") == {"train-cotrain", "evaluate", "promote"}
    again, before = manifest(root, "c", "train-cotrain"), manifest(root, "r", "train-cotrain")
    window, frozen = (reference(root, "r", stage) for stage in ("select-window", "train-frozen"))
    assert again.inputs == {"window": window, "parent": frozen}
    assert parent(root, "c")["inputs"].keys() == {"select-window", "train-frozen"}
    for figure in ("checksums_before", "checksums_after", "loss_curve"):
        assert again.figures[figure] == before.figures[figure]
    assert manifest(root, "c", "evaluate").inputs == {"window": window, "model": reference(root, "c", "train-cotrain")}
    assert runs.run_status(f"{root}/runs/c").state == "committed"


def test_a_rerun_is_taken_up_as_any_run(root: Path, cotrained: str) -> None:
    evaluate = plan_rerun(str(root), "c", "evaluate").parent.inputs
    assert evaluate == {
        "select-window": reference(root, "r", "select-window"),
        "train-cotrain": reference(root, "c", "train-cotrain"),
    }
    earlier = plan_rerun(str(root), "c", "train-frozen").parent.inputs
    assert earlier["prepare-backbone"] == reference(root, "r", "prepare-backbone")


def test_one_stage_alone_is_a_pipeline_of_its_own(root: Path) -> None:
    plan = plan_rerun(str(root), "r", "train-cotrain", only=True, overrides=("recipe.table_lr=0.01",))
    assert runs.config_stages(plan.config, plan.kind) == ("train-cotrain",)
    assert plan.config.recipe.table_lr == 0.01
    assert plan.arguments == {
        "window_uri": reference(root, "r", "select-window").uri,
        "parent_uri": reference(root, "r", "train-frozen").uri,
        "fingerprint": (manifest(root, "r", "select-window").window or {})["fingerprint"],
    }


def test_the_window_is_selected_again_for_the_same_date_and_all_stages_follow(root: Path) -> None:
    rerun(root, "w", "select-window", overrides=("recipe.policies=[cotrain]",))
    assert stages(root, "w") == {"select-window", "prepare-backbone", "train-cotrain", "evaluate", "promote"}
    assert parent(root, "w") == {"run": "r", "stage": "select-window", "inputs": {}}
    selected, before = manifest(root, "w", "select-window").window, manifest(root, "r", "select-window").window
    assert selected is not None and before is not None
    assert (selected["date"], selected["training_days"]) == (before["date"], before["training_days"])
    assert manifest(root, "w", "train-cotrain").inputs["window"] == reference(root, "w", "select-window")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@contextmanager
def damaged(path: Path, change: Callable[[Path], None]) -> Iterator[None]:
    aside = path.with_name("aside")
    shutil.copy2(path, aside)
    try:
        change(path)
        yield
    finally:
        aside.replace(path)


FROZEN = "train-frozen/attempt-1"


@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        (f"{FROZEN}/manifest.json", Path.unlink, NotCommittedError, ["train-frozen", "saw sha256:"]),
        (f"{FROZEN}/manifest.json", flip_a_bit, ChangedOutputError, ["train-frozen", "train-cotrain of run r saw"]),
        (f"{FROZEN}/model/__0_0.distcp", flip_a_bit, CheckpointError, ["was written as sha256:"]),
        (f"{FROZEN}/model/__0_0.distcp", Path.unlink, CheckpointError, ["is missing"]),
        (f"{FROZEN}/model/complete.json", flip_a_bit, ChangedOutputError, ["train-frozen", "was written as sha256:"]),
        (f"{FROZEN}/model/complete.json", Path.unlink, ChangedOutputError, ["train-frozen", "was written as sha256:"]),
        ("select-window/attempt-1/window.json", flip_a_bit, ChangedOutputError, ["select-window", "was written as"]),
        ("select-window/attempt-1/manifest.json", flip_a_bit, ChangedOutputError, ["select-window", "of run r saw"]),
    ],
)
def test_what_is_gone_or_changed_is_refused_with_stage_path_and_digests(
    root: Path, name: str, change: Callable[[Path], None], error: type[Exception], words: list[str]
) -> None:
    path = root / "runs/r" / name
    size = path.stat().st_size
    with damaged(path, change), pytest.raises(error) as caught:
        assert change is Path.unlink or path.stat().st_size == size
        plan_rerun(str(root), "r", "train-cotrain")
    message = str(caught.value)
    assert all(word in message for word in [str(path.parent), path.name, *words])
    assert change is Path.unlink or message.count("sha256:") == 2


def test_a_refusal_is_one_message_and_no_run(root: Path) -> None:
    with damaged(root / "runs/r" / FROZEN / "manifest.json", Path.unlink):
        done = thaw("rerun", "--run", "r", "--stage", "train-cotrain", "--run-id", "never", "--root", str(root))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "stage train-frozen of run r is not committed" in done.stderr
    assert not (root / "runs/never").exists()


@pytest.mark.parametrize(
    ("stage", "override", "words"),
    [
        ("score", "seed=0", "the stages of this configuration are select-window, prepare-backbone"),
        ("train-cotrain", "seed=7", "seed: 0 in the checkpoint, 7 in this run"),
        (
            "prepare-backbone",
            "data.window.num_days=3",
            "data.window.num_days: 2 in the window's manifest, 3 in this run",
        ),
        ("evaluate", "evaluation.hits=2", "evaluation.hits: no such key"),
    ],
)
def test_a_configuration_that_does_not_fit_what_is_there_is_refused(
    root: Path, stage: str, override: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan_rerun(str(root), "r", stage, overrides=(override,))


def test_a_backbone_is_published_again_and_not_made_again(root: Path) -> None:
    elsewhere = root / "elsewhere"
    with untouched(root / "runs/b"):
        command = ("rerun", "--run", "b", "--stage", "publish-backbone", "--run-id", "p", "--root", str(root))
        done = thaw(*command, overrides=(f"backbone.publish_prefix_uri='{elsewhere}'",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert stages(root, "p") == {"publish-backbone"}
    assert manifest(root, "p", "publish-backbone").outputs == {"model": f"{elsewhere}/p"}
    assert runs.run_status(f"{root}/runs/p").state == "committed"
