import numpy as np
import pytest
from scored_log import Scored

from thaw.components.evaluate.predictions import read_predictions
from thaw.components.evaluate.truth import read_truth

HEADS = ("click", "hide")


def test_truth_meets_its_row_by_request_and_order_of_the_candidates(scored: Scored) -> None:
    predictions = read_predictions(f"{scored.predictions_uri}/evaluation", HEADS)
    last_day = scored.log.days == scored.log.days.max()
    truth = read_truth(scored.window.truth, HEADS, predictions)
    np.testing.assert_array_equal(truth, scored.log.truths[last_day].reshape(-1, 2))


def test_a_request_without_truth_is_named(scored: Scored) -> None:
    predictions = read_predictions(f"{scored.predictions_uri}/evaluation", HEADS)
    with pytest.raises(ValueError, match=f"0 of 150 .* request {predictions.request_ids[0]} is not"):
        read_truth(scored.window.truth[:-1], HEADS, predictions)


def test_a_truth_that_is_there_twice_is_an_error(scored: Scored) -> None:
    predictions = read_predictions(f"{scored.predictions_uri}/evaluation", HEADS)
    with pytest.raises(ValueError, match="some more than once"):
        read_truth([scored.window.truth[-1]] * 2, HEADS, predictions)
