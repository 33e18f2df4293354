"""A rank that fails ends the others too, soon, and its own error is the one that it tells."""

import os
from typing import Any

import pytest
from two_ranks import Batch, Failure, Groups, SmallModel, make_batch, run_ranks, shard


def fail(groups: Groups, where: str) -> str:
    import torch

    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    sharded = shard(groups.sparse)
    model = SmallModel(groups, tables=sharded)
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    is_guilty = groups.rank == 1
    look_up, num_lookups = sharded.compute_and_output_dist, 0

    def failing(*args: Any) -> Any:
        nonlocal num_lookups
        num_lookups += 1
        if num_lookups == 3:
            raise ArithmeticError("the lookup fails")
        return look_up(*args)

    if is_guilty and where == "chain":
        sharded.compute_and_output_dist = failing

    def batches() -> Any:
        for number in range(6):
            if is_guilty and where == "loader" and number == 4:
                raise OSError("a file is gone")
            yield make_batch(number, groups.rank)

    forward = PrefetchingForward(model, optimizer, group=groups.sparse)
    for number, batch in enumerate(LookaheadLoader(batches(), forward)):
        loss = model(batch)
        if is_guilty and number == 2 and where == "forward":
            raise LookupError("the model fails")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if is_guilty and number == 2 and where == "loop":
            raise KeyError("the loop fails")
        if is_guilty and number == 2 and where == "killed":
            os.kill(os.getpid(), 9)
    return "trained"


@pytest.mark.parametrize(
    ("where", "kind", "words"),
    [
        ("chain", "ArithmeticError", "the lookup fails"),
        ("loader", "OSError", "a file is gone"),
        ("forward", "LookupError", "the model fails"),
        ("loop", "KeyError", "the loop fails"),
        ("killed", None, None),
    ],
)
def test_an_exception_on_one_rank_ends_all_ranks(where: str, kind: str | None, words: str | None) -> None:
    innocent, guilty = run_ranks(fail, where, timeout_s=100)
    assert innocent is None or isinstance(innocent, Failure)
    if kind is None:
        assert guilty is None
        return
    assert isinstance(guilty, Failure) and guilty.kind == kind and words and words in guilty.message
    assert isinstance(innocent, Failure)
    if where == "chain":
        assert "in failing" in guilty.text  # where it was raised, though another thread raised it


def never_begins(groups: Groups) -> list[str]:
    """Threads of a pipeline that is closed, and of one that was never used."""
    import threading

    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    def chains() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "sparse chain"]

    forward = PrefetchingForward({"tables": shard(groups.sparse)}, None, group=groups.sparse)
    empty: list[Batch] = []
    assert list(LookaheadLoader(empty, forward)) == []
    (chain,) = chains()
    forward.close()
    chain.join(30)
    return [thread.name for thread in chains()]


def test_a_closed_pipeline_has_no_thread() -> None:
    assert run_ranks(never_begins) == [[], []]
