"""How often a module is called, when, and with what."""

from typing import Any

import pytest
import torch
from stage import Stage, error, play, told
from torch import nn
from two_ranks import KEYS, make_batch, results


@pytest.fixture(scope="module")
def everyone() -> list[dict[str, Any]]:
    return results(play, __name__)


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
def evaluated_within_a_step(stage: Stage) -> list[str]:
    stage.open()
    with error() as said:
        for batch in stage.over(stage.batches(2)):
            loss = stage.model(batch)
            with torch.no_grad():
                stage.model(batch)
            loss.backward()
    return said


@told
def frozen_called_twice(stage: Stage) -> list[str]:
    """A forward that looks up two inputs in a frozen module."""
    stage.open(frozen=["sharded.tables"])
    with error() as said:
        for batch in stage.over(stage.batches(2)):
            stage.tables(batch.kjt)
            stage.tables(make_batch(9, stage.groups.rank).kjt)
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
        assert "was called again, or to evaluate, within the step of batch 0" in said["frozen_called_twice"][0]


def test_an_evaluation_within_a_step_is_refused(everyone: list[Any]) -> None:
    for said in everyone:
        assert "was called again, or to evaluate, within the step of batch 0" in said["evaluated_within_a_step"][0]


def test_a_module_called_to_train_outside_of_the_loop_is_refused_by_name(everyone: list[Any]) -> None:
    for said in everyone:
        assert "sharded.tables was called to train outside of a loop" in said["outside"][0]


def test_a_closed_pipeline_leaves_the_modules_as_they_were(everyone: list[Any]) -> None:
    for said in everyone:
        assert said["closed"] == [0, 0, 0]
