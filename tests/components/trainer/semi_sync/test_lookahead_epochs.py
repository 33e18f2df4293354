"""Beginnings and ends: epochs, loops that are left, evaluations between steps, ranks that part."""

from typing import Any

import pytest
import torch
from stage import Stage, error, play, told
from two_ranks import make_batch, results


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play, __name__)


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
