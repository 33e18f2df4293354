"""What a loop may do, and what it is told where it may not. One pair of ranks goes through all of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import KEYS, NUM_ROWS, WORLD, Batch, Groups, SmallModel, make_batch, results, rows_here, shard, shards

TOLD: dict[str, Callable[["Stage"], Any]] = {}


def told(function: Callable[["Stage"], Any]) -> Callable[["Stage"], Any]:
    TOLD[function.__name__] = function
    return function


class Stage:
    """A fresh small model and its pipeline for each scene."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def open(self, kind: str = "pooled", zero: bool = False, **options: Any) -> None:
        from thaw.components.trainer.semi_sync import PrefetchingForward

        self.tables = shard(self.groups.sparse, kind, {}, options.pop("fused", "sgd"))
        if zero:
            for _, part in shards(self.tables):
                part.tensor.zero_()
        self.model = SmallModel(self.groups, tables=self.tables)
        self.optimizer = torch.optim.SGD(self.model.dense.parameters(), lr=0.1)
        options.setdefault("optimizer", self.optimizer)
        self.forward = PrefetchingForward(self.model, group=self.groups.sparse, **options)

    def batches(self, number: int, **options: Any) -> list[Batch]:
        return [make_batch(n, self.groups.rank, **options) for n in range(number)]

    def over(self, batches: Any) -> Iterator[Batch]:
        from thaw.components.trainer.semi_sync import LookaheadLoader

        return iter(LookaheadLoader(batches, self.forward))

    def step(self, batch: Batch) -> float:
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def count(self, batch: Batch) -> float:
        """A step on the counting row; the updates that it had seen."""
        row = self.tables(batch.kjt)["f0"][0]
        (-row.sum()).backward()
        return row[0].item()

    def counted(self) -> float:
        """Updates that the counting row has had."""
        seen = [rows[0, 0].item() for name, start, rows in rows_here(self.tables) if name == "t0" and start == 0]
        everyone: list[Any] = [None] * WORLD
        dist.all_gather_object(everyone, seen, group=self.groups.dense)
        return sum(sum(of_rank) for of_rank in everyone)


@contextmanager
def error() -> Iterator[list[str]]:
    said: list[str] = []
    try:
        yield said
    except Exception as raised:
        said.append(f"{type(raised).__name__}: {raised}")


def play(groups: Groups) -> dict[str, Any]:
    said = {}
    for name, scene in TOLD.items():
        stage = Stage(groups)
        said[name] = scene(stage)
        with error():
            stage.forward.close()
    return said


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play)


# Where a module's input comes from.


def run_derived(stage: Stage, **options: Any) -> list[float]:
    """The model looks up something that the batch doesn't hold."""
    stage.open(**options)
    losses = []
    for batch in stage.over(stage.batches(4)):
        batch.source["derived"] = batch.source.pop("ids")
        rows = stage.tables(batch.source["derived"][0].kjt.permute([0, 1, 2, 3]))
        logit = stage.model.dense(torch.cat([*(rows[key] for key in KEYS), batch.dense], 1))
        loss = nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        loss.backward()
        stage.optimizer.step()
        stage.optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@told
def derived_input(stage: Stage) -> list[str]:
    with error() as said:
        run_derived(stage)
    return said


@told
def getter(stage: Stage) -> tuple[list[float], list[float]]:
    losses = run_derived(stage, inputs={"sharded.tables": lambda batch: batch.kjt})
    stage.forward.close()
    stage.open()
    return losses, [stage.step(batch) for batch in stage.over(stage.batches(4))]


@told
def left_synchronous(stage: Stage) -> tuple[list[float], list[float]]:
    losses = run_derived(stage, synchronous=["sharded.tables"])
    stage.forward.close()
    stage.open(staleness=0)
    return losses, [stage.step(batch) for batch in stage.over(stage.batches(4))]


@told
def input_from_elsewhere(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for number, batch in enumerate(stage.over(stage.batches(3))):
            if number == 1:
                batch.source["ids"][0].kjt = make_batch(9, stage.groups.rank).kjt
            stage.step(batch)
    return said


def test_an_input_that_the_batch_does_not_hold_is_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        (text,) = said["derived_input"]
        assert "the input of sharded.tables is no object that the batch (a Batch) holds" in text


def test_an_input_given_by_a_function_is_looked_up_ahead(everyone: list[Any]) -> None:
    for said in everyone:
        with_function, by_identity = said["getter"]
        assert with_function == by_identity


def test_a_module_left_synchronous_is_not_stale(everyone: list[Any]) -> None:
    for said in everyone:
        left, synchronous = said["left_synchronous"]
        assert left == synchronous


def test_an_input_from_another_place_than_in_the_first_batch_is_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        (text,) = said["input_from_elsewhere"]
        assert "sharded.tables was called for batch 1 with another input than batch.source['ids'][0].kjt" in text


# How often a module is called, and when.


@told
def called_twice(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for batch in stage.over(stage.batches(2)):
            stage.model(batch)
            stage.model(batch)
    return said


@told
def not_called(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for number, batch in enumerate(stage.over(stage.batches(3))):
            if number != 1:
                stage.step(batch)
    return said


@told
def outside(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        stage.model(stage.batches(1)[0])
    return said


@told
def closed(stage: Stage) -> list[float]:
    """The modules' own forward is back: the plain loop, against the synchronous one."""
    stage.open(staleness=0)
    ours = [stage.step(batch) for batch in stage.over(stage.batches(3))]
    stage.forward.close()
    stage.open()
    stage.forward.close()
    plain = [stage.step(batch) for batch in stage.batches(3)]
    stage.open()
    return [x - y for x, y in zip(ours, plain, strict=True)]


def test_a_module_called_twice_or_never_for_a_batch_is_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        assert "sharded.tables was called twice for batch 0" in said["called_twice"][0]
        assert "sharded.tables was not called for batch 1" in said["not_called"][0]


def test_a_module_called_to_train_outside_of_the_loop_is_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        assert "sharded.tables was called to train outside of a loop" in said["outside"][0]


def test_a_closed_pipeline_leaves_the_modules_as_they_were(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["closed"] == [0, 0, 0]


# Backward passes and optimizer steps.


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


# Beginnings and ends.


@told
def epochs(stage: Stage) -> list[float]:
    stage.open(zero=True, optimizer=None)
    said = []
    for number in (0, 1, 2, 3, 4, 3, 0):
        from thaw.components.trainer.semi_sync import LookaheadLoader

        loader = LookaheadLoader(stage.batches(number, counter=True), stage.forward)
        assert len(loader) == number
        for _ in range(2):  # the same loader twice
            for batch in loader:
                stage.count(batch)
            said.append(stage.counted())
    return said


@told
def left_by_break(stage: Stage) -> list[float]:
    stage.open(zero=True, optimizer=None)
    said = []
    for stop in (0, 2):
        for number, batch in enumerate(stage.over(stage.batches(5, counter=True))):
            stage.count(batch)
            if number == stop:
                break
        stage.forward.drain()
        said.append(stage.counted())
    for _ in stage.over(stage.batches(2, counter=True)):
        break  # before the model is called
    stage.forward.drain()
    return [*said, stage.counted()]


@told
def evaluated(stage: Stage) -> Any:
    """Between steps the model is evaluated, once under no_grad and once in eval mode."""
    stage.open(zero=True, optimizer=None)
    said = []
    for number, batch in enumerate(stage.over(stage.batches(6, counter=True))):
        seen = stage.count(batch)
        other = make_batch(50, stage.groups.rank, 3, counter=True)
        if number == 2:
            with torch.no_grad():
                said.append((seen, stage.tables(other.kjt)["f0"][0, 0].item()))
        elif number == 4:
            stage.model.eval()
            output = stage.tables(other.kjt)["f0"]
            said.append((seen, output[0, 0].item(), output.requires_grad))
            stage.model.train()
        else:
            said.append((seen,))
    with torch.no_grad():
        said.append((stage.tables(other.kjt)["f0"][0, 0].item(),))
    return said


@told
def parting(stage: Stage) -> list[str]:
    stage.open(zero=True, optimizer=None)
    with error() as said:
        for batch in stage.over(stage.batches(3 + stage.groups.rank, counter=True)):
            stage.count(batch)
    return said


@told
def two_loops(stage: Stage) -> list[str]:
    stage.open(zero=True, optimizer=None)
    first = stage.over(stage.batches(4, counter=True))
    stage.count(next(first))
    with error() as said:
        for batch in stage.over(stage.batches(2, counter=True)):
            stage.count(batch)
        next(first)
    return [*said, stage.counted()]


def test_every_epoch_of_a_loader_trains_all_its_batches(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["epochs"] == [0, 0, 1, 2, 4, 6, 9, 12, 16, 20, 23, 26, 26, 26]


def test_a_loop_that_is_left_loses_no_update(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["left_by_break"] == [1, 4, 4]


def test_an_evaluation_between_steps_sees_all_updates(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["evaluated"] == [(0,), (0,), (1, 3), (3,), (3, 5, False), (5,), (6,)]


def test_ranks_with_unequally_many_batches_are_told_so(everyone: list[Any]) -> None:
    for rank, said in enumerate(everyone):
        (text,) = said["parting"]
        assert "the ranks part" in text and "knows 2 more batches after batch 0" in text
        assert f"rank {1 - rank} knows {3 - rank} more batches" in text


def test_a_loop_that_another_one_replaced_does_not_go_on(everyone: list[Any]) -> None:
    for said in everyone:
        text, counted = said["two_loops"]
        assert "another loop over a LookaheadLoader has begun" in text and counted == 3


# What it is built of, and what it says of itself.


@told
def refusals(stage: Stage) -> dict[str, Any]:
    from thaw.components.trainer.semi_sync import PrefetchingForward

    stage.open()
    said = {}
    own = stage.groups.sparse
    with error() as said["again"]:
        PrefetchingForward(stage.model, None, group=own)
    stage.forward.close()
    with error() as said["frozen"]:
        PrefetchingForward(stage.model, None, group=own, frozen=["tabels"])
    with error() as said["none"]:
        PrefetchingForward(nn.Linear(1, 1), None, group=own)
    with error() as said["world"]:
        PrefetchingForward(stage.model, None, group=dist.group.WORLD)
    with error() as said["shared"]:
        PrefetchingForward(stage.model, None, group=stage.groups.dense)
    with error() as said["staleness"]:
        PrefetchingForward(stage.model, None, group=own, staleness=2)  # type: ignore[arg-type]
    with error() as said["ddp"]:
        wrapped = nn.ModuleDict({"tables": stage.tables, "dense": DistributedDataParallel(nn.Linear(1, 1))})
        PrefetchingForward(wrapped, None, group=own)
    stage.open()
    return said


@told
def figures(stage: Stage) -> Any:
    from thaw.components.trainer.semi_sync.measure import summary

    stage.open(trace_steps=range(2, 4), count_rows_every=1)
    for batch in stage.over(stage.batches(6)):
        stage.step(batch)
    steps = list(stage.forward.figures.done)
    trace = [(event.row, event.where, event.batch, event.begin_s, event.end_s) for event in stage.forward.figures.trace]
    return (
        [(step.step, step.staleness, step.num_bytes, step.num_rows, step.num_shared_rows) for step in steps],
        trace,
        summary(steps),
    )


def test_what_it_cannot_work_with_is_refused_when_it_is_built(everyone: list[Any]) -> None:
    for said in everyone:
        told = said["refusals"]
        assert "the forward of sharded.tables has been replaced already" in told["again"][0]
        assert "frozen names 'tabels'; the sharded modules are sharded.tables" in told["frozen"][0]
        assert "Linear has no sharded module" in told["none"][0]
        assert "a process group of their own" in told["world"][0]
        assert "the gradients of dense are reduced in the tables' process group" in told["shared"][0]
        assert "staleness is 0 or 1" in told["staleness"][0]
        assert told["ddp"] == []


def test_bytes_and_shared_rows_are_those_of_the_batches(everyone: list[Any]) -> None:
    def rows_of(number: int) -> set[tuple[str, int]]:
        table = {"f0": "t0", "f1": "t1", "f2": "t1", "f3": "t2"}
        return {
            (table[key], row)
            for rank in range(WORLD)
            for key in KEYS
            for row in make_batch(number, rank).kjt[key].values().tolist()
        }

    of_ranks = [said["figures"][0] for said in everyone]
    for number in range(1, 6):
        named, before = rows_of(number), rows_of(number - 1)
        assert sum(steps[number][3] for steps in of_ranks) == len(named)
        assert sum(steps[number][4] for steps in of_ranks) == len(named & before)
    for number in range(6):
        kjts = [make_batch(number, rank).kjt for rank in range(WORLD)]
        ids = sum(8 * (len(kjt.values()) + len(kjt.lengths())) for kjt in kjts)
        assert sum(steps[number][2]["input dist"] for steps in of_ranks) == ids
        for steps in of_ranks:
            rows = 6 * len(KEYS) * 4 * 4  # batch, features, DIM, bytes of a float
            assert steps[number][2]["lookup and output dist"] == rows
            assert steps[number][2]["sparse backward and update"] == rows


def test_the_trace_has_the_rows_of_the_timeline_for_the_steps_asked_for(everyone: list[Any]) -> None:
    for said in everyone:
        _, trace, told = said["figures"]
        rows = {"copy", "input dist", "lookup and output dist", "dense forward and backward"}
        rows |= {"sparse backward and update", "wait"}
        assert {(row, batch) for row, _, batch, *_ in trace} == {(row, batch) for row in rows for batch in (2, 3)}
        assert {where for row, where, *_ in trace if row in ("copy", "wait")} == {"main thread"}
        assert {where for row, where, *_ in trace if "sparse" in row or "lookup" in row} == {"chain thread"}
        assert all(begin <= end for *_, begin, end in trace)
        on_chain = sorted((begin, end) for _, where, _, begin, end in trace if where == "chain thread")
        assert all(end <= begin for (_, end), (begin, _) in zip(on_chain, on_chain[1:]))
        begins = {(row, batch): begin for row, _, batch, begin, _ in reversed(trace)}
        assert begins["lookup and output dist", 3] < begins["sparse backward and update", 2]
        assert told["num_steps"] == 6 and told["max_staleness"] == 1 and 0 <= told["hidden_fraction"] <= 1
