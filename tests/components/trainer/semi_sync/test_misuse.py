"""What a stranger's loop may get wrong: told at once, and with no table moved."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from stage import Stage, error, play, told
from torch import nn
from two_ranks import FEATURES, KEYS, make_batch, results, rows_here, shard


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play, __name__)


def tables_of(stage: Stage) -> list[torch.Tensor]:
    return [rows for *_, rows in rows_here(stage.tables)]


@told
def closed(stage: Stage) -> Any:
    stage.open()
    batches = stage.batches(4)
    for batch in stage.over(batches):
        stage.step(batch)
    loop = stage.over(batches)
    stage.step(next(loop))
    stage.forward.close()
    stage.forward.close()
    with error() as next_after_close:
        next(loop)
    with error() as again:
        for batch in stage.over(batches):
            stage.step(batch)
    with stage.forward:
        stage.forward.close()
    stage.open()
    return next_after_close, again


@told
def wrong_at_the_start(stage: Stage) -> Any:
    from thaw.components.trainer.semi_sync import PrefetchingForward

    stage.open()
    with error() as busy:
        PrefetchingForward({"other": shard(stage.groups.sparse)}, None, group=stage.groups.sparse)
    stage.forward.close()
    other = dist.new_group()
    with error() as elsewhere:
        PrefetchingForward(stage.model, None, group=other)
    with error() as none:
        PrefetchingForward(stage.model, None, group=None)  # type: ignore[arg-type]
    with error() as no_optimizer:
        PrefetchingForward(stage.model, nn.Linear(1, 1), group=stage.groups.sparse)  # type: ignore[arg-type]
    stage.open()
    return busy, elsewhere, none, no_optimizer


@told
def unfused(stage: Stage) -> Any:
    """Tables whose gradient is left to an optimizer of the dense half."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingEnv

    from thaw.components.trainer.semi_sync import PrefetchingForward

    stage.open()
    stage.forward.close()
    configs = [EmbeddingBagConfig(name="t0", embedding_dim=8, num_embeddings=20, feature_names=list(FEATURES["t0"]))]
    tables, sharder = EmbeddingBagCollection(tables=configs), EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(
        tables, {"t0": table_wise(rank=0)}, sharder, world_size=2, local_size=2, device_type="cpu"
    )
    environment = ShardingEnv.from_process_group(stage.groups.sparse)
    sharded = sharder.shard(tables, plan, environment, torch.device("cpu"))
    with error() as said:
        PrefetchingForward({"tables": sharded}, None, group=stage.groups.sparse)
    PrefetchingForward({"tables": sharded}, None, group=stage.groups.sparse, frozen=["tables"]).close()
    stage.open()
    return said


@told
def accumulation_later(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for number, batch in enumerate(stage.over(stage.batches(6))):
            stage.model(batch).backward()
            if number != 3:
                stage.optimizer.step()
                stage.optimizer.zero_grad()
    return said


@told
def trained_as_an_evaluation(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for batch in stage.over(stage.batches(3)):
            with torch.no_grad():
                stage.model(batch)
    return said


@told
def left_before_the_optimizer(stage: Stage) -> bool:
    stage.open()
    before: list[torch.Tensor] = []
    for number, batch in enumerate(stage.over(stage.batches(4))):
        if number == 2:
            stage.forward.drain()
            before = tables_of(stage)
        stage.model(batch).backward()
        if number == 2:
            break
        stage.optimizer.step()
        stage.optimizer.zero_grad()
    stage.forward.close()
    after = tables_of(stage)
    stage.open()
    return all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@told
def spent_iterator(stage: Stage) -> Any:
    from thaw.components.trainer.semi_sync import LookaheadLoader

    stage.open()
    loader = LookaheadLoader(iter(stage.batches(3)), stage.forward)
    first = [stage.step(batch) for batch in loader]
    with error() as said:
        for batch in loader:
            stage.step(batch)
    return len(first), said


def test_a_closed_pipeline_says_so_and_can_be_closed_again(everyone: list[Any]) -> None:
    for said in everyone:
        for text in said["closed"]:
            assert text == ["RuntimeError: this PrefetchingForward is closed; build another one"]


def test_groups_and_optimizers_that_cannot_work_are_refused_before_anything_runs(everyone: list[Any]) -> None:
    for said in everyone:
        busy, elsewhere, none, no_optimizer = said["wrong_at_the_start"]
        assert "another PrefetchingForward communicates in this group" in busy[0]
        assert "sharded.tables is sharded over another process group than `group`" in elsewhere[0]
        assert "group is None" in none[0]
        assert "optimizer is a Linear, not a torch.optim.Optimizer" in no_optimizer[0]


def test_tables_that_their_own_backward_pass_does_not_update_are_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        assert "table t0 of tables is table_wise with kernel dense" in said["unfused"][0]


def test_accumulation_is_refused_in_every_step(everyone: list[Any]) -> None:
    for said in everyone:
        assert "batch 3 had a backward pass and no optimizer step" in said["accumulation_later"][0]


def test_a_module_called_only_to_evaluate_is_told_why_that_trains_nothing(everyone: list[Any]) -> None:
    for said in everyone:
        assert "sharded.tables was not called for batch 0" in said["trained_as_an_evaluation"][0]
        assert "under no_grad or in eval() is an evaluation" in said["trained_as_an_evaluation"][0]


def test_a_step_left_before_the_optimizer_moves_no_table(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["left_before_the_optimizer"]


def test_an_iterator_has_no_second_epoch(everyone: list[Any]) -> None:
    for said in everyone:
        num_batches, text = said["spent_iterator"]
        assert num_batches == 3 and "is an iterator that has given its batches in an earlier epoch" in text[0]


# Loss scalers.


@told
def scaler_not_given(stage: Stage) -> list[str]:
    stage.open()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with error() as said:
        for batch in stage.over(stage.batches(2)):
            scaler.scale(stage.model(batch)).backward()
            scaler.step(stage.optimizer)
            scaler.update()
    return said


@told
def scaler_clipped(stage: Stage) -> Any:
    """The norms, and what they leave of the tables, with a loss scale and without."""
    norms, tables = [], []
    for is_scaled in (True, False):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=is_scaled)
        stage.open(scaler=scaler if is_scaled else None)
        for batch in stage.over(stage.batches(4)):
            scaler.scale(stage.model(batch)).backward()
            scaler.unscale_(stage.optimizer)
            parameters = stage.model.dense.parameters()
            norms.append(stage.forward.clip_grad_norm_(parameters, 0.1, stage.groups.dense).item())
            scaler.step(stage.optimizer)
            scaler.update()
            stage.optimizer.zero_grad()
        stage.forward.close()
        tables.append(tables_of(stage))
    stage.open()
    return norms[:4], norms[4:], tables


@told
def scaler_lowered_by_hand(stage: Stage) -> float:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    stage.open(scaler=scaler)
    before = tables_of(stage)
    for batch in stage.over(stage.batches(3)):
        scaler.scale(stage.model(batch)).backward()
        scaler.step(stage.optimizer)
        scaler.update(scaler.get_scale() / 2)
        stage.optimizer.zero_grad()
    stage.forward.close()
    moved = max(float((x - y).abs().max()) for x, y in zip(before, tables_of(stage), strict=True) if len(x))
    stage.open()
    return moved


@told
def scaler_blind_to_rows(stage: Stage) -> Any:
    """Gradients of rows that are not finite, step after step, while those of the dense half are."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    stage.open(scaler=scaler)
    before = tables_of(stage)
    num_steps = 0
    with error() as said:
        for batch in stage.over(stage.batches(20)):
            scaler.scale(stage.model(batch)).backward()
            if stage.groups.rank == 1:
                leaf = stage.forward.leaves()[0]
                assert leaf.grad is not None
                leaf.grad[0, 0] = float("nan")
            scaler.step(stage.optimizer)
            scaler.update()
            stage.optimizer.zero_grad()
            num_steps += 1
    unmoved = all(torch.equal(x, y) for x, y in zip(before, tables_of(stage), strict=True))
    return said, num_steps, unmoved


def test_a_scaler_that_the_pipeline_does_not_know_is_refused(everyone: list[Any]) -> None:
    for said in everyone:
        assert "a GradScaler steps the optimizer" in said["scaler_not_given"][0]


def test_clipping_under_a_loss_scale_is_clipping_without(everyone: list[Any]) -> None:
    for said in everyone:
        scaled, plain, (scaled_tables, plain_tables) = said["scaler_clipped"]
        assert scaled == pytest.approx(plain, rel=1e-5)
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(scaled_tables, plain_tables, strict=True))


def test_a_scale_lowered_by_hand_is_no_skipped_step(everyone: list[Any]) -> None:
    assert max(said["scaler_lowered_by_hand"] for said in everyone) > 1e-3


def test_rows_whose_scaled_gradient_is_never_finite_are_named_before_long(everyone: list[Any]) -> None:
    from thaw.components.trainer.semi_sync.links import MAX_SPOILED

    for said in everyone:
        text, num_steps, is_unmoved = said["scaler_blind_to_rows"]
        assert "of sharded.tables is not finite on rank 1" in text[0]
        assert MAX_SPOILED <= num_steps <= MAX_SPOILED + 1 and is_unmoved


# Evaluations and drains before the model's forward; learning rates of tables.


@told
def frozen_evaluated_first(stage: Stage) -> Any:
    """Rows of another batch, asked for before this one's: where inputs come by function, at every depth."""
    wrong = []
    for depth in (0, 1, 3):
        inputs = {"sharded.tables": lambda batch: batch.kjt.permute([0, 1, 2, 3])}
        stage.open(frozen=["sharded.tables"], depth=depth, inputs=inputs)
        stage.forward.close()
        other = make_batch(40, stage.groups.rank).kjt
        expected = [torch.cat([stage.tables(batch.kjt)[k] for k in KEYS], 1) for batch in stage.batches(4)]
        expected_other = torch.cat([stage.tables(other)[key] for key in KEYS], 1)
        from thaw.components.trainer.semi_sync import PrefetchingForward

        options: dict[str, Any] = {"frozen": ["sharded.tables"], "depth": depth, "inputs": inputs}
        stage.forward = PrefetchingForward(stage.model, None, group=stage.groups.sparse, **options)
        for number, batch in enumerate(stage.over(stage.batches(4))):
            found_other = stage.tables(other) if number % 2 else None
            found = stage.tables(batch.kjt.permute([0, 1, 2, 3]))
            wrong.append(float((torch.cat([found[key] for key in KEYS], 1) - expected[number]).abs().max()))
            if found_other is not None:
                rows = torch.cat([found_other[key] for key in KEYS], 1)
                wrong.append(float((rows - expected_other).abs().max()))
        stage.forward.close()
    stage.open()
    return max(wrong)


@told
def drained_first(stage: Stage) -> Any:
    """Updates that each batch's rows have seen, where the loop drains before the forward of batch 3."""
    stage.open(zero=True, optimizer=None)
    seen = []
    for number, batch in enumerate(stage.over(stage.batches(6, counter=True))):
        if number == 3:
            stage.forward.drain()
        seen.append(round(stage.count(batch)))
    stage.forward.drain()
    return seen, stage.counted(), [figures.staleness for figures in stage.forward.figures.done]


@told
def rate_in_order(stage: Stage) -> Any:
    """Updates that a counting row gets where the rate becomes 0 in the step of batch 2, whichever rank is slow."""
    import time

    said = []
    for slow in (None, 0, 1):
        stage.open(zero=True, optimizer=None)
        look_up = stage.tables.compute_and_output_dist

        def slowly(*args: Any, is_slow: bool = slow == stage.groups.rank, look_up: Any = look_up) -> Any:
            time.sleep(0.05 * is_slow)
            return look_up(*args)

        stage.tables.compute_and_output_dist = slowly  # type: ignore[method-assign]
        fused = stage.tables.fused_optimizer
        for number, batch in enumerate(stage.over(stage.batches(7, counter=True))):
            stage.count(batch)
            if number == 2:
                for group in fused.param_groups:
                    group["lr"] = 0.0
                stage.forward.in_order(fused.step)
        stage.forward.close()
        said.append(stage.counted())
    stage.open()
    return said


def test_a_frozen_module_gives_the_rows_that_it_is_asked_for_before_the_batches_own(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["frozen_evaluated_first"] == 0.0


def test_a_batch_drained_before_its_forward_lacks_no_update(everyone: list[Any]) -> None:
    for said in everyone:
        seen, counted, staleness = said["drained_first"]
        assert seen == [0, 0, 1, 3, 3, 4] and counted == 6
        assert staleness == [0, 1, 1, 0, 1, 1]


def test_a_rate_changed_in_order_holds_from_the_same_batch_on_every_rank(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["rate_in_order"] == [4.0, 4.0, 4.0]
