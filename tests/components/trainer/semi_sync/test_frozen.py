"""Frozen modules looked up ahead, and what is resumed from a drain."""

import copy
from typing import Any

import torch
from two_ranks import Groups, SmallModel, make_batch, results, rows_here, shard, shards, slots_here

NUM_BATCHES = 8


def freeze(groups: Groups) -> dict[str, Any]:
    """Losses and tables by kind and depth: all tables frozen, and one module frozen beside a trained one."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    said: dict[str, Any] = {}
    for kind in ("pooled", "sequence"):
        for are_all in (True, False):
            for depth in (0, 1, 3):
                still = shard(groups.sparse, kind, {"t0": "row_wise"}, "adagrad", tables=["t0", "t1"])
                other = shard(groups.sparse, kind, {}, "adagrad", lr=0.1, tables=["t2"])
                model = SmallModel(groups, still=still, other=other)
                model.frozen = ("still", "other") if are_all else ("still",)
                before = [*(rows for *_, rows in rows_here(still)), *slots_here(still)]
                optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.5)
                names = {f"sharded.{name}" for name in model.frozen}
                forward = PrefetchingForward(model, optimizer, group=groups.sparse, frozen=names, depth=depth)
                losses = []
                for batch in LookaheadLoader([make_batch(n, groups.rank) for n in range(NUM_BATCHES)], forward):
                    loss = model(batch)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
                    if len(losses) == 4:  # an evaluation between steps
                        with torch.no_grad():
                            losses.append(model(make_batch(50, groups.rank, 4)).item())
                forward.close()
                after = [*(rows for *_, rows in rows_here(still)), *slots_here(still)]
                said[f"{kind} {are_all} {depth}"] = {
                    "losses": losses,
                    "untouched": all(torch.equal(x, y) for x, y in zip(before, after, strict=True)),
                    "other": [rows for *_, rows in rows_here(other)],
                    "gradient_bytes": sum(
                        step.num_bytes.get("sparse backward and update", 0) for step in forward.figures.done
                    ),
                    "stale": {step.staleness for step in forward.figures.done},
                }
    return said


def test_frozen_tables_looked_up_ahead_are_those_looked_up_when_called_bit_for_bit() -> None:
    for said in results(freeze):
        for kind in ("pooled", "sequence"):
            for are_all in (True, False):
                when_called = said[f"{kind} {are_all} 0"]
                for depth in (0, 1, 3):
                    ahead = said[f"{kind} {are_all} {depth}"]
                    assert ahead["losses"] == when_called["losses"] and len(ahead["losses"]) == NUM_BATCHES + 1
                    assert all(torch.equal(x, y) for x, y in zip(ahead["other"], when_called["other"], strict=True))
                    assert ahead["untouched"]
                    assert ahead["stale"] == ({0} if are_all else {0, 1})
                    assert (ahead["gradient_bytes"] == 0) == are_all


def resume(groups: Groups) -> dict[str, Any]:
    """A run that drains in its middle, and one that is begun there anew from what the first one held then."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    batches = [make_batch(n, groups.rank) for n in range(NUM_BATCHES)]
    middle = 3
    saved: dict[str, Any] = {}
    said = {}
    for run in ("unbroken", "resumed"):
        sharded = shard(groups.sparse, "sequence", {"t0": "row_wise"}, "adagrad", lr=0.2)
        model = SmallModel(groups, tables=sharded)
        optimizer = torch.optim.Adagrad(model.dense.parameters(), lr=0.1)
        first = 0
        if run == "resumed":
            first = middle
            model.dense.load_state_dict(saved["dense"])
            optimizer.load_state_dict(saved["optimizer"])
            for (_, part), rows in zip(shards(sharded), saved["rows"], strict=True):
                part.tensor.copy_(rows)
            state = sharded.fused_optimizer.state_dict()["state"]
            slots = iter(saved["slots"])
            for key in sorted(state):
                for slot in sorted(state[key]):
                    for part in state[key][slot].local_shards():
                        part.tensor.copy_(next(slots))
        forward = PrefetchingForward(model, optimizer, group=groups.sparse)
        losses = []
        trained = []
        for number, batch in enumerate(LookaheadLoader(batches[first:], forward), first):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            trained.append(number)
            if number + 1 == middle:
                forward.drain()
                saved = {
                    "dense": {key: value.clone() for key, value in model.dense.state_dict().items()},
                    "optimizer": copy.deepcopy(optimizer.state_dict()),
                    "rows": [rows for *_, rows in rows_here(sharded)],
                    "slots": slots_here(sharded),
                }
        forward.close()
        said[run] = (trained, losses, [rows for *_, rows in rows_here(sharded)], slots_here(sharded))
    return said


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit_and_trains_each_batch_once() -> None:
    for said in results(resume):
        trained, losses, *tensors = said["unbroken"]
        again, losses_again, *tensors_again = said["resumed"]
        assert trained == list(range(NUM_BATCHES)) and again == trained[3:]
        assert losses_again == losses[3:]
        for ours, theirs in zip(tensors, tensors_again):
            assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


def look_ahead(groups: Groups) -> dict[int, list[tuple[int, bool]]]:
    """By depth: lookups that had begun in the body of each batch, and whether those of the depth came without more
    batches being asked for."""
    import threading

    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    said = {}
    for depth in (1, 3):
        sharded = shard(groups.sparse)
        begun, changed, look_up = [0], threading.Condition(), sharded.compute_and_output_dist

        def counted(*args: Any, begun: Any = begun, changed: Any = changed, look_up: Any = look_up) -> Any:
            with changed:
                begun[0] += 1
                changed.notify_all()
            return look_up(*args)

        sharded.compute_and_output_dist = counted
        forward = PrefetchingForward({"tables": sharded}, None, group=groups.sparse, frozen=["tables"], depth=depth)
        bodies = []
        for number, batch in enumerate(LookaheadLoader([make_batch(n, groups.rank) for n in range(8)], forward)):
            sharded(batch.kjt)
            expected = min(8, number + 1 + depth) if number else 1 + depth
            with changed:
                came = changed.wait_for(lambda: begun[0] >= expected, 20)  # noqa: B023
                bodies.append((begun[0] - number, came))
        forward.close()
        said[depth] = bodies
    return said


def test_frozen_lookups_run_as_many_batches_ahead_as_they_are_told_to() -> None:
    for said in results(look_ahead):
        for depth in (1, 3):
            assert said[depth] == [(min(8 - number, 1 + depth), True) for number in range(8)]
