"""What the pipeline can't be built of, and what it says of itself."""

import itertools
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stage import Stage, error, play, told
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from two_ranks import KEYS, WORLD, make_batch, results


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play, __name__)


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
    with error() as said["device"]:
        PrefetchingForward(stage.model, None, group=own, device=torch.device("cuda"))
    with error() as said["ddp"]:
        wrapped = nn.ModuleDict({"tables": stage.tables, "dense": DistributedDataParallel(nn.Linear(1, 1))})
        PrefetchingForward(wrapped, None, group=own).close()
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
        assert "sharded.tables are on cpu, not on cuda; give it as `device`" in told["device"][0]
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
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(on_chain))
        begins = {(row, batch): begin for row, _, batch, begin, _ in reversed(trace)}
        assert begins["lookup and output dist", 3] < begins["sparse backward and update", 2]
        assert told["num_steps"] == 6 and told["max_staleness"] == 1 and 0 <= told["hidden_fraction"] <= 1


@told
def memory(stage: Stage) -> list[int]:
    """At each batch, how many batches' rows are alive, with the garbage collector off."""
    import gc
    import weakref

    stage.open("sequence")
    alive: list[Any] = []
    said = []
    gc.collect()
    gc.disable()
    for batch in stage.over(stage.batches(6)):
        stage.step(batch)
        alive.append(weakref.ref(stage.forward.leaves()[0]))
        said.append(sum(leaf() is not None for leaf in alive))
    gc.enable()
    return said


def test_no_more_than_two_batches_keep_their_rows(everyone: list[Any]) -> None:
    for said in everyone:
        assert max(said["memory"]) <= 2  # the second one's gradients may be on their way to the tables


@told
def with_an_exception(stage: Stage) -> Any:
    """An exception of the loop passes through `with`, which waits for nobody and gives the modules back."""
    before = set(threading.enumerate())
    stage.open()
    with error() as said, stage.forward:
        for batch in stage.over(stage.batches(3)):
            stage.step(batch)
            raise KeyError("in the loop")
    is_back = "forward" not in vars(stage.tables)
    for thread in set(threading.enumerate()) - before:
        thread.join()  # the next pipeline is to have the tables' group for itself
    stage.open()
    return said, is_back


def test_an_exception_passes_through_the_pipeline_and_leaves_the_modules_as_they_were(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["with_an_exception"] == (["KeyError: 'in the loop'"], True)
