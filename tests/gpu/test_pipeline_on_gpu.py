"""The pipeline on CUDA streams: against the oracle, under delays on every stream, with frozen modules.

One rank under NCCL has the streams and events of a job on many GPUs, but exchanges no rows. Two ranks on one GPU do
exchange them, under gloo, as NCCL refuses to have two ranks on one GPU; gloo makes the host wait for each exchange.
With two GPUs at hand, two ranks under NCCL are checked too.
"""

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from delays import litter, random_rests
from oracle import DENSE_LR, NUM_BATCHES, SHARDINGS, Case, distance
from two_ranks import Groups, SmallModel, make_batch, results, rows_here, shard, shards, slots_here

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

CASES = [
    Case("pooled", "table_wise"),
    Case("pooled", "table_wise", staleness=0),
    Case("pooled", "mixed", "adagrad"),
    Case("sequence", "table_wise", "adagrad"),
    Case("sequence", "mixed"),
    Case("sequence", "row_wise", "adagrad", staleness=0),
]
SEEDS = [None, 0, 1, 2]
"""Of the delays; None: undelayed."""
TOLERANCE = {"sgd": 1e-5, "adagrad": 5e-5}
"""Of losses and rows, both of order 1, in float32: CUDA's sums have no fixed order, FBGEMM's roots are fast ones."""
COUNTED = range(12)
NUM_COUNTED = 7


@dataclass(frozen=True)
class World:
    size: int
    backend: str
    num_gpus: int = 1

    def __str__(self) -> str:
        return f"{self.size}-{self.backend}-on-{self.num_gpus}-gpu"


WORLDS = [World(1, "nccl"), World(2, "gloo"), World(2, "nccl", num_gpus=2)]


def train(groups: Groups, case: Case, seed: int | None) -> tuple[list[float], Any, list[int]]:
    """Losses, rows and staleness of one run; the host never waits for the device in it."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    kinds, device = SHARDINGS[case.sharding], groups.device
    sharded = shard(groups.sparse, case.kind, kinds, case.optimizer, case.lr, device=device)
    model = SmallModel(groups, tables=sharded)
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=DENSE_LR)
    forward = PrefetchingForward(model, optimizer, group=groups.sparse, staleness=case.staleness, device=device)
    losses = []

    with random_rests(sharded, None if seed is None else 2 * seed + groups.rank, device) as pause:

        def drawn() -> Any:
            for number in range(NUM_BATCHES):
                pause()  # on the copy stream
                yield case.batch(number, groups.rank)

        for batch in LookaheadLoader(drawn(), forward, device):
            loss = model(batch)
            pause()
            loss.backward()
            pause()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            del batch, loss
            litter(device)
        forward.close()
    staleness = [figures.staleness for figures in forward.figures.done]
    return [loss.item() for loss in losses], rows_here(sharded), staleness


def count(groups: Groups, seed: int) -> tuple[int, list[float], list[float], list[int]]:
    """The staleness asked for, the updates that each batch saw, those that the row saw in the end, what is told."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    draw, device = random.Random(seed), groups.device  # the same on all ranks
    kind, staleness = draw.choice(["pooled", "sequence"]), draw.choice([0, 1, 1, 1])
    slow_rank = draw.choice([None, *range(groups.sparse.size())])
    sharded = shard(groups.sparse, kind, device=device)
    for _, part in shards(sharded):
        part.tensor.zero_()
    forward = PrefetchingForward({"tables": sharded}, None, group=groups.sparse, staleness=staleness, device=device)
    batches = [make_batch(number, groups.rank, counter=True) for number in range(NUM_COUNTED)]
    own_seed = 2 * seed + groups.rank if slow_rank in (None, groups.rank) else None
    seen = []
    with random_rests(sharded, own_seed, device) as pause:
        for batch in LookaheadLoader(batches, forward, device):
            output = sharded(batch.kjt)
            row = output["f0"].values()[0] if kind == "sequence" else output["f0"][0]
            seen.append(row[0].detach().clone())
            pause()
            (-row.sum()).backward()
            pause()
    forward.drain()
    in_the_end = [rows[0, 0].item() for name, start, rows in rows_here(sharded) if name == "t0" and start == 0]
    told = [figures.staleness for figures in forward.figures.done]
    forward.close()
    return staleness, [updates.item() for updates in seen], in_the_end, told


def freeze(groups: Groups, kind: str, depth: int, seed: int | None) -> dict[str, Any]:
    """Losses over frozen tables beside a table that trains, and what became of both."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    device = groups.device
    still = shard(groups.sparse, kind, {"t0": "row_wise"}, "adagrad", tables=["t0", "t1"], device=device)
    other = shard(groups.sparse, kind, {}, "adagrad", lr=0.1, tables=["t2"], device=device)
    model = SmallModel(groups, still=still, other=other)
    model.frozen = ("still", "other")
    before = [*(rows for *_, rows in rows_here(still)), *slots_here(still)]
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.5)
    names = {f"sharded.{name}" for name in model.frozen}
    forward = PrefetchingForward(model, optimizer, group=groups.sparse, frozen=names, depth=depth, device=device)
    losses = []
    with random_rests(still, seed, device) as pause:
        batches = [make_batch(number, groups.rank) for number in range(NUM_BATCHES)]
        for batch in LookaheadLoader(batches, forward, device):
            loss = model(batch)
            pause()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            litter(device)
    forward.close()
    after = [*(rows for *_, rows in rows_here(still)), *slots_here(still)]
    return {
        "losses": [loss.item() for loss in losses],
        "is_untouched": all(torch.equal(x, y) for x, y in zip(before, after, strict=True)),
    }


def everything(groups: Groups) -> dict[str, Any]:
    """All that is checked in one world, as each new one costs the start of its processes."""
    return {
        "trained": {seed: {case: train(groups, case, seed) for case in CASES} for seed in SEEDS},
        "counted": {seed: count(groups, seed) for seed in COUNTED},
        "frozen": {
            (kind, depth, seed): freeze(groups, kind, depth, seed)
            for kind in ("pooled", "sequence")
            for depth, seed in ((0, None), (1, None), (3, None), (3, 5))
        },
    }


@pytest.fixture(scope="module", params=WORLDS, ids=str)
def everyone(gpu: None, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    world: World = request.param
    if torch.cuda.device_count() < world.num_gpus:
        pytest.skip(f"{world} needs {world.num_gpus} GPUs, and {torch.cuda.device_count()} are here")
    return results(everything, world=world.size, device="cuda", backend=world.backend, timeout_s=400)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_and_tables_are_those_of_the_recurrence_whatever_is_slow(everyone: list[Any], case: Case) -> None:
    for seed in SEEDS:
        trained = [of_rank["trained"][seed] for of_rank in everyone]
        right = distance(case, trained, case.staleness)
        assert max(right) < TOLERANCE[case.optimizer], f"seed {seed}: {right}"
        for staleness in {0, 1, 2} - {case.staleness}:
            wrong = distance(case, trained, staleness)
            assert min(wrong) > 2 * TOLERANCE[case.optimizer], f"seed {seed}: as near to staleness {staleness}: {wrong}"
        for of_rank in trained:
            assert of_rank[case][2] == [0] + [case.staleness] * (NUM_BATCHES - 1)


def test_a_batch_sees_all_updates_but_the_last_one_whatever_is_slow(everyone: list[Any]) -> None:
    for seed in COUNTED:
        ends = []
        for staleness, seen, in_the_end, told in (of_rank["counted"][seed] for of_rank in everyone):
            expected = [0] + [staleness] * (NUM_COUNTED - 1)
            assert [number - updates for number, updates in enumerate(seen)] == expected, f"seed {seed}"
            assert told == expected
            ends += in_the_end
        assert ends == [NUM_COUNTED]


def test_frozen_tables_are_untouched_and_looked_up_ahead_as_when_called(everyone: list[Any]) -> None:
    for of_rank in everyone:
        for (kind, depth, seed), frozen in of_rank["frozen"].items():
            when_called = of_rank["frozen"][kind, 0, None]["losses"]
            assert frozen["is_untouched"]
            if kind == "pooled":
                assert frozen["losses"] == when_called, f"depth {depth}, seed {seed}"
            else:  # the small model adds a sequence's rows up in any order
                assert frozen["losses"] == pytest.approx(when_called, abs=1e-5), f"depth {depth}, seed {seed}"
