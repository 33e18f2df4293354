"""The trainer's own jobs on CUDA, on a tiny log: against those on the CPU, and by the rules of freeze and thaw."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_log import job, make_config, write_window
from torchrec import KeyedJaggedTensor
from worlds import Ranks, run_world

from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import Window
from thaw.components.trainer import checkpoint
from thaw.components.trainer.assembly import RANKER_FEATURES, build_tables
from thaw.components.trainer.epoch import train_epoch
from thaw.components.trainer.pretrain import pretrain
from thaw.components.trainer.saving import rows_alone
from thaw.components.trainer.score import score
from thaw.components.trainer.tables import ShardedTables, TableOptimizer, TableSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

KINDS = {"pretrain": pretrain, "train": train_epoch, "score": score}


def do(ranks: Ranks, config: RunConfig, window: Window, specs: list[JobSpec]) -> list[dict[str, Any]]:
    """Figures of each job."""
    return [KINDS[spec.kind](spec, config, window, ranks) for spec in specs]


def chain(folder: Path, config: RunConfig, name: str) -> list[JobSpec]:
    """Backbone, frozen epoch, co-trained epoch, scores."""

    def model(stage: str) -> str:
        return str(folder / f"{name}-{stage}" / "model")

    return [
        job(folder, config, "pretrain", f"{name}-backbone"),
        job(folder, config, "train", f"{name}-frozen", policy="frozen", epoch=0, checkpoint_uri=model("backbone")),
        job(folder, config, "train", f"{name}-cotrain", policy="cotrain", epoch=1, checkpoint_uri=model("frozen")),
        job(folder, config, "score", f"{name}-score", checkpoint_uri=model("cotrain")),
    ]


def check_losses(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Pass jobs of the same losses."""
    for figures, expected in zip(ours, theirs, strict=True):
        for (step, loss), (same_step, same_loss) in zip(
            figures.get("loss_curve", []), expected.get("loss_curve", []), strict=True
        ):
            assert (step, loss) == (same_step, pytest.approx(same_loss, abs=1e-4))
    _, frozen, cotrain, _ = ours
    assert frozen["checksums_before"] == frozen["checksums_after"]
    assert all(cotrain["checksums_before"][name] != cotrain["checksums_after"][name] for name in ("table/user",))
    assert (frozen["pipeline"]["staleness"], cotrain["pipeline"]["staleness"]) == (0, 1)
    assert frozen["pipeline"]["bytes_a_step"]["sparse backward and update"] == 0


def test_all_jobs_have_the_losses_that_they_have_on_the_cpu(tmp_path: Path) -> None:
    window = write_window(tmp_path)
    said = {}
    for device in ("cpu", "cuda"):
        config = make_config(tmp_path, f"training.device={device}")
        said[device] = run_world(1, do, config, window, chain(tmp_path, config, device), device=device)[0]
    check_losses(said["cuda"], said["cpu"])


def do_by_steps(
    ranks: Ranks, config: RunConfig, window: Window, specs: list[JobSpec], uris: list[str]
) -> list[dict[str, torch.Tensor]]:
    """The tables, on the host, as they lie in checkpoints of the jobs."""
    do(ranks, config, window, specs)
    found = []
    for uri in uris:
        tables = build_tables(config, ranks, RANKER_FEATURES, 1.0)
        checkpoint.load(uri, rows_alone(tables.tensors()), group=ranks.world)
        found.append({name: part.tensor.detach().clone().cpu() for name, part in tables.shards()})
    return found


def check_first_step(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], lr: float) -> None:
    """Pass tables whose rows have moved by one first step of row-wise Adagrad, or not at all."""
    for name in ("user", "item"):
        length = (after[name] - before[name]).square().mean(1).sqrt()
        touched = length > 0
        assert 0 < int(touched.sum()) < len(touched), name
        torch.testing.assert_close(length[touched].max(), torch.tensor(lr), rtol=1e-3, atol=0)
        assert length.max() <= lr * (1 + 1e-3)


def first_step(folder: Path, device: str) -> tuple[list[dict[str, torch.Tensor]], float]:
    options = ("recipe.table_optimizer=rowwise_adagrad", "recipe.dense_optimizer=adam", "recipe.table_lr=0.03")
    config = make_config(folder, f"training.device={device}", *options, "training.checkpoint_every_steps=1")
    specs = chain(folder, config, "by-steps")[:3]
    uris = [str(folder / "by-steps-frozen" / "model"), str(folder / "by-steps-cotrain" / "checkpoints" / "step-1")]
    window = write_window(folder)
    return run_world(1, do_by_steps, config, window, specs, uris, device=device)[0], config.recipe.table_lr


def test_the_first_step_after_the_thaw_moves_a_touched_row_by_the_full_rate(tmp_path: Path) -> None:
    (before, after), lr = first_step(tmp_path, "cuda")
    check_first_step(before, after, lr)


def decay(ranks: Ranks, weight_decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A table's rows before and after a step whose gradient is zero, in which rows 1 and 3 are looked up."""
    tables = ShardedTables(
        (TableSpec("user", 8, ("user",)),),
        dim=4,
        optimizer=TableOptimizer("rowwise_adagrad", lr=0.01, weight_decay=weight_decay),
        seed=3,
        group=ranks.sparse,
        device=ranks.device,
        sharding={"user": "table_wise"},
    )
    rows = [part.tensor.detach() for _, part in tables.shards()]
    before = rows[0].clone().cpu()
    ids = KeyedJaggedTensor(["user"], torch.tensor([1, 3]), lengths=torch.tensor([1, 1])).to(ranks.device)
    (tables(ids)["user"].values().sum() * 0).backward()
    return before, rows[0].clone().cpu()


def test_rows_that_are_looked_up_decay_and_no_others() -> None:
    for weight_decay in (0.5, 0.0):
        before, after = run_world(1, decay, weight_decay, device="cuda")[0]
        # The decay is the whole gradient, and row-wise Adagrad makes a first step of it: 0.01 in root mean square.
        gradient = weight_decay * before[[1, 3]]
        expected = before.clone()
        if weight_decay:
            expected[[1, 3]] -= 0.01 * gradient / gradient.square().mean(1, keepdim=True).sqrt()
        torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-6)
        untouched = [0, 2, *range(4, 8)]
        assert torch.equal(after[untouched], before[untouched])


def test_an_epoch_with_weight_decay_leaves_other_rows_than_one_without(tmp_path: Path) -> None:
    window = write_window(tmp_path)
    sums = {}
    for weight_decay in (0.0, 0.1):
        options = ("recipe.table_optimizer=rowwise_adagrad", f"recipe.table_weight_decay={weight_decay}")
        config = make_config(tmp_path, "training.device=cuda", *options)
        spec = job(tmp_path, config, "train", f"decay-{weight_decay}", policy="cotrain", epoch=0)
        (figures,) = run_world(1, do, config, window, [spec], device="cuda")[0]
        sums[weight_decay] = figures["checksums_before"], figures["checksums_after"]
    assert sums[0.0][0] == sums[0.1][0]
    assert all(sums[0.0][1][name] != sums[0.1][1][name] for name in ("table/user", "table/item"))
