"""Edges of an epoch: few rows, unequal files, resuming, models of fewer inputs, what a rank reports."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from slow_model import SlowModel, read_rows
from small_log import DATA, job, make_config, write_window
from worlds import Ranks, run_world

from thaw.components import events, storage
from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import Window
from thaw.components.trainer.assembly import build_ranker
from thaw.components.trainer.epoch import train_epoch
from thaw.components.trainer.figures import check_steps
from thaw.components.trainer.initial_rows import initial_rows
from thaw.components.trainer.pretrain import pretrain
from thaw.components.trainer.progress import EventFiles, Progress


def train(ranks: Ranks, config: RunConfig, window: Window, specs: list[JobSpec]) -> list[dict[str, Any]]:
    return [train_epoch(spec, config, window, ranks) for spec in specs]


def ledger(folder: Path, stage: str) -> list[tuple[int, int]]:
    """(step, request id) of all ranks."""
    parts = sorted((folder / stage / "ledger").iterdir())
    return sorted((row["step"], row["request_id"]) for part in parts for row in pq.read_table(part).to_pylist())


# https://github.com/meta-pytorch/torchrec/issues/189 , https://github.com/meta-pytorch/torchrec/issues/3132
@pytest.mark.parametrize(("request_rows", "num_steps"), [((12, 21), 9), ((1,), 1)], ids=["33-rows", "1-row"])
def test_all_ranks_make_the_same_steps_and_train_each_row_once_whatever_the_files(
    tmp_path: Path, request_rows: tuple[int, ...], num_steps: int
) -> None:
    window = write_window(tmp_path, request_rows)
    config = make_config(tmp_path, "training.global_batch_size=4")
    for size in (2, 3):
        stages = [f"of-{size}-epoch-{epoch}" for epoch in (0, 1)]
        specs = [
            job(tmp_path, config, "train", stage, policy="cotrain", epoch=epoch) for epoch, stage in enumerate(stages)
        ]
        for figures in run_world(size, train, config, window, specs):
            assert [epoch["num_steps"] for epoch in figures] == [num_steps] * 2
            assert [len(epoch["loss_curve"]) for epoch in figures] == [num_steps] * 2
            assert [epoch["num_requests"] for epoch in figures] == [sum(request_rows)] * 2
        for spec in specs:
            rows = ledger(tmp_path, spec.stage)
            assert sorted(request_id for _, request_id in rows) == list(range(sum(request_rows)))
            assert {step for step, _ in rows} == set(range(num_steps))


# https://github.com/mosaicml/streaming/issues/437 , https://github.com/mosaicml/streaming/issues/880
@pytest.mark.parametrize("world_size", [2, 1])
def test_a_resumed_epoch_ends_as_the_unbroken_one_and_trains_each_row_once(tmp_path: Path, world_size: int) -> None:
    window = write_window(tmp_path, (17,))
    config = make_config(
        tmp_path,
        "training.checkpoint_every_steps=1",
        "recipe.table_optimizer=rowwise_adagrad",
        "recipe.dense_optimizer=adam",
    )
    unbroken = job(tmp_path, config, "train", "unbroken", policy="cotrain", epoch=3)
    resumed = job(
        tmp_path,
        config,
        "train",
        "resumed",
        policy="cotrain",
        epoch=3,
        resume_uri=str(tmp_path / "unbroken" / "checkpoints" / "step-2"),
    )
    whole = run_world(2, train, config, window, [unbroken])[0][0]
    rest = run_world(world_size, train, config, window, [resumed])[0][0]
    assert sorted(path.name for path in (tmp_path / "unbroken" / "checkpoints").iterdir()) == [
        f"step-{step}" for step in (1, 2, 3)
    ]
    assert (whole["num_steps"], rest["num_steps"], rest["first_step"]) == (4, 4, 2)
    if world_size == 2:
        assert rest["checksums_after"] == whole["checksums_after"]
        assert rest["loss_curve"] == whole["loss_curve"]
    for (step, loss), (same_step, same_loss) in zip(rest["loss_curve"], whole["loss_curve"], strict=True):
        assert (step, loss) == (same_step, pytest.approx(same_loss, abs=1e-5))
    assert [rest[name] for name in ("num_requests", "num_rows")] == [
        whole[name] for name in ("num_requests", "num_rows")
    ]
    assert ledger(tmp_path, "resumed") == [row for row in ledger(tmp_path, "unbroken") if row[0] >= 2]

    other = resumed.model_copy(update={"epoch": 4, "output_uri": str(tmp_path / "other")})
    with pytest.raises(AssertionError, match="step-2 is of epoch 3, and this job trains epoch 4"):
        run_world(1, train, config, window, [other])
    changed = window.model_copy(update={"fingerprint": "sha256:1"})
    larger = make_config(tmp_path, "training.global_batch_size=8", "recipe.table_lr=0.5")
    with pytest.raises(AssertionError, match="goes another way") as refusal:
        run_world(1, train, larger, changed, [other.model_copy(update={"epoch": 3})])
    for key in ("window: 'sha256:0'", "training.global_batch_size: 5", "recipe.table_lr: 1.0"):
        assert key in str(refusal.value)


@pytest.mark.parametrize("step", [3, 4, 6])
def test_resumed_pretraining_ends_as_the_unbroken_one(tmp_path: Path, step: int) -> None:
    window = write_window(tmp_path)
    config = make_config(tmp_path, "training.checkpoint_every_steps=1", "recipe.table_optimizer=rowwise_adagrad")
    uri = str(tmp_path / "unbroken" / "checkpoints" / f"step-{step}")
    specs = [
        job(tmp_path, config, "pretrain", "unbroken"),
        job(tmp_path, config, "pretrain", "resumed", resume_uri=uri),
    ]
    for whole, rest in run_world(2, pretrain_all, config, window, specs):
        assert whole["num_steps"] == rest["num_steps"] == 8
        assert rest["checksums_after"] == whole["checksums_after"]
        assert rest["loss_curve"] == whole["loss_curve"]
        assert rest["num_pairs"] == whole["num_pairs"]


def pretrain_all(ranks: Ranks, config: RunConfig, window: Window, specs: list[JobSpec]) -> list[dict[str, Any]]:
    return [pretrain(spec, config, window, ranks) for spec in specs]


MODELS: dict[str, dict[str, Any]] = {
    "no content": {"items": None},
    "patches alone": {"items": {"patches": DATA["items"]["patches"]}},
    "tokens alone": {"items": {"tokens": DATA["items"]["tokens"]}},
    "no context": {"context": []},
    "no history": {"columns": {"history": None}, "num_history_actions": None},
    "history without actions": {"columns": {"history_age_s": "age_s"}, "num_history_actions": None},
    "history without ages": {"columns": {"history_action": "action"}},
}


def test_models_of_fewer_inputs_are_those_of_the_slow_model(tmp_path: Path) -> None:
    window = write_window(tmp_path, (5,))
    requests = read_rows(window.training)
    for name, data in MODELS.items():
        config = make_config(tmp_path, "training.num_nodes=1", **data)
        spec = job(tmp_path, config, "train", name.replace(" ", "-"), policy="cotrain")
        (figures,) = run_world(1, train, config, window, [spec])[0]
        ranker = build_ranker(config, torch.device("cpu"))
        tables = {
            table: initial_rows(config.seed, table, 0, spec.num_rows, config.model.dim)
            for table, spec in config.data.tables.items()
        }
        dense = {parameter: tensor.detach().clone() for parameter, tensor in ranker.named_parameters()}
        slow = SlowModel(config, window, tables, dense)
        assert figures["loss_curve"] == [(1, pytest.approx(slow.loss(requests).item(), abs=1e-6))], name


def test_a_model_without_a_contrastive_loss_has_no_towers(tmp_path: Path) -> None:
    window = write_window(tmp_path, (6,))
    config = make_config(tmp_path, "model.contrastive.weight=0")
    spec = job(tmp_path, config, "train", "plain", policy="cotrain")
    for (figures,) in run_world(2, train, config, window, [spec]):
        assert len(figures["loss_curve"]) == 2
    assert not any("tower" in name for name, _ in build_ranker(config, torch.device("cpu")).named_parameters())


# https://github.com/meta-pytorch/torchrec/issues/2327 , https://github.com/meta-pytorch/torchrec/issues/2670
def test_an_epoch_that_makes_no_step_or_too_few_is_an_error() -> None:
    check_steps("epoch 2", 0, 4, 4, 40)
    with pytest.raises(RuntimeError, match="epoch 2 made 0 steps of 4, for 40 rows of the window"):
        check_steps("epoch 2", 0, 0, 4, 40)
    with pytest.raises(RuntimeError, match="epoch 2 made 1 steps of 3"):
        check_steps("epoch 2", 1, 2, 4, 40)
    with pytest.raises(RuntimeError, match="epoch 0 made 0 steps of 0"):
        check_steps("epoch 0", 0, 0, 0, 0)


def tell(ranks: Ranks, output_uri: str) -> tuple[list[tuple[int, float]], str]:
    with redirect_stdout(io.StringIO()) as told:
        progress = Progress("stage", output_uri, 5, 2, ranks.world)
        for step in range(1, 6):
            loss = torch.tensor(float(step + 10 * ranks.rank))
            progress.step(step, 3, loss, {"bce": loss / 2})
        progress.close()
    return progress.curve, told.getvalue()


def test_progress_is_told_as_means_over_steps_and_ranks(tmp_path: Path) -> None:
    curve = [(2, 6.5), (4, 8.5), (5, 10.0)]
    (curve_of_0, told), (curve_of_1, told_by_1) = run_world(2, tell, str(tmp_path))
    assert (curve_of_0, curve_of_1, told_by_1) == (curve, curve, "")
    lines = [event for line in told.splitlines() if (event := events.parse(line))]
    assert [(line["event"], line["stage"], line["num_steps"]) for line in lines] == [("progress", "stage", 5)] * 3
    assert [(line["step"], line["loss"]) for line in lines] == curve
    assert all(line["requests_per_s"] > 0 for line in lines)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(scalar.step, scalar.value) for scalar in read.Scalars("loss")] == curve
    assert [(scalar.step, scalar.value) for scalar in read.Scalars("bce")] == [(step, loss / 2) for step, loss in curve]


def diverge(ranks: Ranks, output_uri: str) -> str:
    progress = Progress("stage", output_uri, 2, 2, ranks.world)
    progress.step(1, 1, torch.tensor(float("nan") if ranks.rank else 1.0), {})
    with pytest.raises(FloatingPointError) as error:
        progress.step(2, 1, torch.tensor(1.0), {})
    return str(error.value)


def test_a_loss_that_is_no_number_on_any_rank_ends_all_of_them(tmp_path: Path) -> None:
    told = "the loss is nan at step 2: lower recipe.dense_lr or table_lr"
    assert run_world(2, diverge, str(tmp_path)) == [told, told]


def test_event_files_reach_a_remote_store(gcs_uri: str) -> None:
    files = EventFiles(f"{gcs_uri}/attempt")
    files.add(1, {"loss": 2.0})
    files.close()
    (file,) = storage.list_files(f"{gcs_uri}/attempt/tensorboard")
    assert file.size > 0
