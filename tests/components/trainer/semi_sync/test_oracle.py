"""The pipeline against a slow and obvious simulation in one process."""

from typing import Any

import pytest
from oracle import CASES, NUM_BATCHES, Case, distance, train
from two_ranks import WORLD, results


@pytest.fixture(scope="module")
def trained() -> list[dict[Case, Any]]:
    return results(train, CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_and_tables_are_those_of_the_recurrence(trained: list[dict[Case, Any]], case: Case) -> None:
    loss, table = distance(case, trained, case.staleness)
    assert loss < 1e-6 and table < 1e-6
    assert all(len(trained[rank][case][0]) == NUM_BATCHES for rank in range(WORLD))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_losses_and_tables_of_another_staleness_are_far_away(trained: list[dict[Case, Any]], case: Case) -> None:
    right = distance(case, trained, case.staleness)
    for staleness in {0, 1, 2} - {case.staleness}:
        loss, table = distance(case, trained, staleness)
        assert loss > 1e-4 and table > 2e-5
        assert loss > 100 * right[0] and table > 100 * right[1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_staleness_counted_in_the_chain_is_the_one_asked_for(trained: list[dict[Case, Any]], case: Case) -> None:
    for rank in range(WORLD):
        assert trained[rank][case][2] == [0] + [case.staleness] * (NUM_BATCHES - 1)
