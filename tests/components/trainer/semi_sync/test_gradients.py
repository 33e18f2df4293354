"""What becomes of gradients: sums, scales, clips, infinities, losses that reach few tables."""

from typing import Any

import pytest
import torch
from stage import Stage, error, play, told
from two_ranks import NUM_ROWS, WORLD, make_batch, results, rows_here, shard


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play, __name__)


@told
def two_backwards(stage: Stage) -> tuple[Any, Any]:
    tables = []
    for is_twice in (True, False):
        stage.open()
        # DistributedDataParallel reduces one backward pass a forward; here it's the tables that matter.
        stage.optimizer.param_groups[0]["lr"] = 0
        for batch in stage.over(stage.batches(4)):
            loss = stage.model(batch)
            if is_twice:
                (0.75 * loss).backward(retain_graph=True)
                (0.25 * loss).backward()
            else:
                loss.backward()
            stage.optimizer.step()
            stage.optimizer.zero_grad()
        stage.forward.close()
        tables.append([rows for *_, rows in rows_here(stage.tables)])
    stage.open()
    return tables[0], tables[1]


@told
def accumulation(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for number, batch in enumerate(stage.over(stage.batches(4))):
            stage.model(batch).backward()
            if number % 2:
                stage.optimizer.step()
    return said


@told
def late_backward(stage: Stage) -> list[str]:
    stage.open(optimizer=None)
    with error() as said:
        for batch in stage.over(stage.batches(2)):
            loss = stage.tables(batch.kjt)["f0"].sum()
            loss.backward(retain_graph=True)
            stage.forward.drain()
            loss.backward()
    return said


@told
def clipped(stage: Stage) -> dict[str, Any]:
    stage.open()
    for batch in stage.over(stage.batches(1)):
        stage.model(batch).backward()
        leaves = [leaf.grad.clone() for leaf in stage.forward.leaves()]
        dense = [parameter.grad.clone() for parameter in stage.model.dense.parameters()]
        norm = stage.forward.clip_grad_norm_(stage.model.dense.parameters(), 0.01, stage.groups.dense)
        said = {
            "leaves": leaves,
            "dense": dense,
            "norm": norm.item(),
            "clipped": [leaf.grad.clone() for leaf in stage.forward.leaves()],
            "clipped_dense": [parameter.grad.clone() for parameter in stage.model.dense.parameters()],
        }
        stage.optimizer.step()
    return said


@told
def autocast(stage: Stage) -> Any:
    stage.open()
    losses = []
    for batch in stage.over(stage.batches(4)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = stage.model(batch)
        loss.backward()
        stage.optimizer.step()
        stage.optimizer.zero_grad()
        losses.append(loss.item())
    dtypes = {rows.dtype for *_, rows in rows_here(stage.tables)}
    stage.forward.close()
    stage.open()
    return losses, [stage.step(batch) for batch in stage.over(stage.batches(4))], dtypes


@told
def scaled(stage: Stage) -> Any:
    """With a loss scaler, whose third step finds an infinity on one rank alone; and without."""
    tables = []
    for is_scaled in (True, False):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_scaled)
        stage.open(scaler=scaler if is_scaled else None)
        before: list[Any] = []
        after: list[Any] = []
        for number, batch in enumerate(stage.over(stage.batches(4))):
            loss = stage.model(batch)
            if number == 2 and not is_scaled:
                continue_with = 0 * loss  # a step that moves nothing
            else:
                continue_with = loss * (float("inf") if number == 2 and stage.groups.rank == 1 else 1)
            scaler.scale(continue_with).backward()
            scaler.step(stage.optimizer)
            scaler.update()
            stage.optimizer.zero_grad()
            if number in (1, 2):
                stage.forward.drain()
                (before if number == 1 else after).extend(rows for *_, rows in rows_here(stage.tables))
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
        stage.forward.close()
        tables.append([rows for *_, rows in rows_here(stage.tables)])
    stage.open()
    return tables


@told
def not_finite(stage: Stage) -> Any:
    return run_not_finite(stage)


@told
def not_finite_seen_later(stage: Stage) -> Any:
    """As on a device whose values the host doesn't wait for."""
    return run_not_finite(stage, host_reads_wait=True)


def run_not_finite(stage: Stage, host_reads_wait: bool = False) -> Any:
    from thaw.components.trainer.semi_sync.places import ChainThread

    ChainThread.host_reads_wait = host_reads_wait
    stage.open()
    with error() as said:
        for number, batch in enumerate(stage.over(stage.batches(4))):
            rows = stage.tables(batch.kjt).to_dict()
            is_bad = number == 1 and stage.groups.rank == 1
            loss = rows["f2"].sum() * (float("nan") if is_bad else 1) + rows["f0"].sum()
            loss.backward()
            stage.optimizer.step()
    ChainThread.host_reads_wait = False
    finite = all(bool(rows.isfinite().all()) for *_, rows in rows_here(stage.tables))
    return said, finite


def test_two_backward_passes_of_a_forward_make_one_update_of_the_sum(everyone: list[Any]) -> None:
    for said in everyone:
        for ours, theirs in zip(*said["two_backwards"], strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6) and ours.isfinite().all()


def test_accumulation_over_batches_is_refused(everyone: list[Any]) -> None:
    for said in everyone:
        assert "batch 0 had a backward pass and no optimizer step" in said["accumulation"][0]


def test_a_backward_pass_after_the_update_is_refused(everyone: list[Any]) -> None:
    for said in everyone:
        assert "updated with already" in said["late_backward"][0]


def test_clipping_takes_the_norm_of_both_halves_over_all_ranks(everyone: list[Any]) -> None:
    squares = sum(float(leaf.square().sum()) for said in everyone for leaf in said["clipped"]["leaves"]) / WORLD**2
    squares += sum(float(gradient.square().sum()) for gradient in everyone[0]["clipped"]["dense"])
    for said in everyone:
        clip = said["clipped"]
        assert clip["norm"] == pytest.approx(squares**0.5, rel=1e-5)
        factor = 0.01 / clip["norm"]
        for names in (("leaves", "clipped"), ("dense", "clipped_dense")):
            for whole, part in zip(clip[names[0]], clip[names[1]], strict=True):
                assert torch.allclose(part, whole * factor, rtol=1e-3)


def test_autocast_goes_on_working(everyone: list[Any]) -> None:
    for said in everyone:
        in_bfloat16, in_float32, dtypes = said["autocast"]
        assert in_bfloat16 == pytest.approx(in_float32, abs=0.02) and in_bfloat16 != in_float32
        assert dtypes <= {torch.float32}


def test_a_scaled_loss_moves_tables_like_an_unscaled_one_and_an_infinity_moves_none(everyone: list[Any]) -> None:
    for said in everyone:
        scaled_tables, plain_tables = said["scaled"]
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(scaled_tables, plain_tables, strict=True))


def test_a_gradient_that_is_not_finite_is_named_on_all_ranks_and_reaches_no_table(everyone: list[Any]) -> None:
    for said in everyone:
        (text,), is_finite = said["not_finite"]
        assert "the gradient of feature 'f2' of sharded.tables is not finite on rank 1 in batch 1" in text
        assert is_finite
        (text,), is_finite = said["not_finite_seen_later"]
        assert "the gradient of feature 'f2' of sharded.tables is not finite on a rank in batch 1" in text
        assert is_finite


# Losses that reach some tables, on some ranks.


@told
def partial_loss(stage: Stage) -> Any:
    """Rank 0's loss reaches f0 alone, rank 1's f1 alone; nobody's reaches the module of t2."""
    from thaw.components.trainer.semi_sync import PrefetchingForward

    stage.open()
    stage.forward.close()
    modules = {
        name: shard(stage.groups.sparse, kind, {}, "adagrad" if name == "never" else "sgd", tables=tables)
        for name, kind, tables in (("first", "sequence", ["t0", "t1"]), ("never", "pooled", ["t2"]))
    }
    before = {name: rows_here(module) for name, module in modules.items()}
    stage.forward = PrefetchingForward(modules, None, group=stage.groups.sparse)
    batches = stage.batches(3)
    for batch in stage.over(batches):
        rows = modules["first"](batch.kjt)
        modules["never"](batch.kjt)
        rows["f0" if stage.groups.rank == 0 else "f1"].values().sum().backward()
    stage.forward.close()
    counts = {}
    for key, rank in (("f0", 0), ("f1", 1)):
        ids = torch.cat([make_batch(n, rank).kjt[key].values() for n in range(3)])
        counts["t0" if key == "f0" else "t1"] = torch.bincount(ids, minlength=NUM_ROWS["t0" if key == "f0" else "t1"])
    wrong = 0.0
    for (name, start, old), (_, _, new) in zip(before["first"], rows_here(modules["first"]), strict=True):
        expected = old - counts[name][start : start + len(old), None] / WORLD
        wrong = max([wrong, *(new - expected).abs().max(dim=1).values.tolist()])
    untouched = all(torch.equal(x[2], y[2]) for x, y in zip(before["never"], rows_here(modules["never"]), strict=True))
    stage.open()
    return wrong, untouched


def test_a_loss_that_reaches_some_tables_on_some_ranks_updates_just_those(everyone: list[Any]) -> None:
    for said in everyone:
        wrong, untouched = said["partial_loss"]
        assert wrong < 1e-5 and untouched
