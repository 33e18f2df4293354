"""A row that counts its own updates, read at every batch, under random delays; and what delays must not change."""

import random
from typing import Any

import pytest
import torch
from two_ranks import (
    NUM_ROWS,
    WORLD,
    Groups,
    SmallModel,
    make_batch,
    random_delays,
    results,
    rows_here,
    shard,
    shards,
)

NUM_BATCHES = 7
SEEDS = range(24)
ROW_WISE = dict.fromkeys(NUM_ROWS, "row_wise")


def count(groups: Groups, seeds: list[int]) -> list[list[Any]]:
    """For each seed: the staleness asked for, batches before which the loop drained, updates that each batch saw, those
    that the row saw in the end, and the staleness that the pipeline tells."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    said = []
    for seed in seeds:
        draw = random.Random(seed)  # the same on both ranks
        kind, sharding = draw.choice(["pooled", "sequence"]), draw.choice([{}, ROW_WISE])
        staleness = draw.choice([0, 1, 1, 1])
        drains = {number for number in range(1, NUM_BATCHES) if draw.random() < 0.15}
        slow_rank, slow_row = draw.choice([None, 0, 1]), draw.choice(["chain", "main", "both"])
        is_slow = slow_rank in (None, groups.rank)

        sharded = shard(groups.sparse, kind, sharding)
        for _, part in shards(sharded):
            part.tensor.zero_()
        forward = PrefetchingForward({"tables": sharded}, None, group=groups.sparse, staleness=staleness)
        batches = [make_batch(number, groups.rank, counter=True) for number in range(NUM_BATCHES)]
        seen = []
        chain_s, main_s = (0.004 * (is_slow and slow_row in (row, "both")) for row in ("chain", "main"))
        with random_delays(sharded, 2 * seed + groups.rank, chain_s, main_s) as pause:
            for number, batch in enumerate(LookaheadLoader(batches, forward)):
                pause()
                output = sharded(batch.kjt)
                row = output["f0"].values()[0] if kind == "sequence" else output["f0"][0]
                seen.append(round(row[0].item(), 3))
                (-row.sum()).backward()
                if number + 1 in drains:
                    forward.drain()
        in_the_end = [rows[0, 0].item() for name, start, rows in rows_here(sharded) if name == "t0" and start == 0]
        told = [figures.staleness for figures in forward.figures.done]
        forward.close()
        said.append([staleness, drains, seen, in_the_end, told])
    return said


def test_a_batch_sees_all_updates_but_the_last_one_whatever_is_slow() -> None:
    everyone = results(count, list(SEEDS))
    assert any(drains for _, drains, *_ in everyone[0])
    for of_seed in zip(*everyone):
        ends = []
        for staleness, drains, seen, in_the_end, told in of_seed:
            expected = [0 if number == 0 or number in drains else staleness for number in range(NUM_BATCHES)]
            assert [number - updates for number, updates in enumerate(seen)] == expected
            assert told == expected
            ends += in_the_end
        assert ends == pytest.approx([NUM_BATCHES])  # one owner, and the last batch's update is there


def train(groups: Groups, seeds: list[int | None]) -> list[Any]:
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    said = []
    for seed in seeds:
        sharded = shard(groups.sparse, "pooled", {"t1": "row_wise"}, "adagrad", lr=0.1)
        model = SmallModel(groups, tables=sharded)
        optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)
        forward = PrefetchingForward(model, optimizer, group=groups.sparse)
        losses = []
        is_slow = seed is not None and seed % 3 in (groups.rank, WORLD)
        longest_s = 0.004 * is_slow
        with random_delays(sharded, (seed or 0) + groups.rank, longest_s, longest_s) as pause:
            for batch in LookaheadLoader([make_batch(n, groups.rank) for n in range(NUM_BATCHES)], forward):
                loss = model(batch)
                pause()
                loss.backward()
                pause()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        forward.close()
        said.append((losses, [rows for *_, rows in rows_here(sharded)]))
    return said


def test_delays_change_no_bit_of_losses_and_tables() -> None:
    for undelayed, *delayed in results(train, [None, *range(9)]):
        for losses, tables in delayed:
            assert losses == undelayed[0]
            assert all(torch.equal(ours, theirs) for ours, theirs in zip(tables, undelayed[1], strict=True))


def wait_for_each_other(groups: Groups) -> list[tuple[int, bool]]:
    """The lookup of batch B+1 doesn't end before the dense backward pass of B has: were either to wait for the other
    before its time, the event would not come."""
    import threading

    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    sharded = shard(groups.sparse)
    model = SmallModel(groups, tables=sharded)
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    backward_done = [threading.Event() for _ in range(NUM_BATCHES)]
    came, look_up = [], sharded.compute_and_output_dist

    def held_back(*args: Any) -> Any:
        number = len(came)
        came.append((number, number == 0 or backward_done[number - 1].wait(20)))
        return look_up(*args)

    sharded.compute_and_output_dist = held_back
    forward = PrefetchingForward(model, optimizer, group=groups.sparse)
    for number, batch in enumerate(LookaheadLoader([make_batch(n, groups.rank) for n in range(NUM_BATCHES)], forward)):
        model(batch).backward()
        backward_done[number].set()
        optimizer.step()
    forward.close()
    return came


def test_the_dense_half_of_a_batch_does_not_wait_for_the_lookup_of_the_next() -> None:
    for came in results(wait_for_each_other):
        assert came == [(number, True) for number in range(NUM_BATCHES)]
