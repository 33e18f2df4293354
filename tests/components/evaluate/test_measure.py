import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from scored_log import Scored, write_predictions

from thaw.components.evaluate.measure import measure
from thaw.components.evaluate.metrics import auc
from thaw.components.evaluate.result import EvaluationResult


def measured(scored: Scored) -> EvaluationResult:
    return measure(scored.config, scored.window, scored.predictions_uri)


def last_day(scored: Scored) -> tuple[np.ndarray, np.ndarray]:
    """Labels of the head click and users, a row each."""
    last = scored.log.days == scored.log.days.max()
    return scored.log.labels[last][..., 0].ravel(), np.repeat(scored.log.users[last], 4)


def test_the_finding_is_the_same_to_the_last_bit_however_the_ranks_shared_the_rows(
    scored: Scored, tmp_path: Path
) -> None:
    documents = []
    for num_ranks, seed in ((1, None), (2, None), (3, 7)):
        folder = tmp_path / f"ranks-{num_ranks}"
        write_predictions(scored.log, scored.log.truths, folder, num_ranks, seed)
        documents.append(measure(scored.config, scored.window, str(folder)).model_dump_json())
    assert documents[0] == documents[1] == documents[2]


def test_the_truth_as_model_has_no_excess_over_the_bayes_optimum(scored: Scored, tmp_path: Path) -> None:
    write_predictions(scored.log, scored.log.truths, tmp_path / "truth")
    head = measure(scored.config, scored.window, str(tmp_path / "truth")).heads[0]
    assert head.bayes is not None and head.excess_log_loss is not None
    assert head.excess_log_loss == pytest.approx(0, abs=1e-6)
    assert head.model.auc == pytest.approx(head.bayes.auc, abs=1e-3)


def test_a_worse_model_has_an_excess(scored: Scored) -> None:
    excess = measured(scored).heads[0].excess_log_loss
    assert excess is not None and excess > 0


def test_without_truth_there_is_no_optimum(scored: Scored) -> None:
    config = scored.config.model_copy(update={"data": scored.config.data.model_copy(update={"truth_path": None})})
    for head in measure(config, scored.window, scored.predictions_uri).heads:
        assert head.bayes is None and head.excess_log_loss is None and head.auc_from_bayes is None


def test_cold_rows_are_those_whose_user_or_item_the_window_lacks(scored: Scored) -> None:
    result = measured(scored)
    labels, users = last_day(scored)
    cold = ~np.isin(users, scored.log.users[scored.log.days < 5])
    assert result.cold.users == pytest.approx(cold.mean()) and cold.mean() > 0.4
    assert result.cold.items == 0
    assert result.cold.either == result.cold.users
    warm = result.heads[0].warm
    assert (warm.num_rows, warm.num_positives) == ((~cold).sum(), labels[~cold].sum())
    assert warm.hit is None and "hit" in warm.undefined


def test_the_gap_is_train_sample_minus_evaluation(scored: Scored, tmp_path: Path) -> None:
    known = scored.log.labels * 0.8 + 0.1
    write_predictions(scored.log, known, tmp_path / "known")
    write_predictions(scored.log, np.full(known.shape, 0.3), tmp_path / "unknown")
    (tmp_path / "known" / "evaluation").rename(tmp_path / "moved")
    (tmp_path / "unknown" / "evaluation").rename(tmp_path / "known" / "evaluation")
    head = measure(scored.config, scored.window, str(tmp_path / "known")).heads[0]
    assert head.auc_gap == 0.5
    assert head.log_loss_gap is not None and head.log_loss_gap > 0


def test_the_document_is_strict_json_and_comes_back_equal(scored: Scored) -> None:
    result = measured(scored)
    text = json.dumps(result.model_dump(mode="json"), allow_nan=False)
    assert EvaluationResult.model_validate_json(text) == result


def test_the_figures_are_plain_numbers_under_flat_names(scored: Scored) -> None:
    result = measured(scored)
    figures = result.figures()
    labels, _ = last_day(scored)
    assert {"click_auc", "click_hit_at_3", "hide_log_loss", "hide_excess_log_loss", "cold_user_share"} <= set(figures)
    assert all(type(value) is float for value in figures.values())
    assert figures["click_auc_over_baseline"] == pytest.approx(
        figures["click_auc"] - (result.heads[0].baselines["user and item means"].auc or 0)
    )
    assert labels.sum() == result.heads[0].model.num_positives


def test_a_head_without_a_positive_is_measured_as_far_as_it_can_be(scored: Scored, tmp_path: Path) -> None:
    labels = scored.log.labels.copy()
    labels[..., 1] = 0
    silent = dataclasses.replace(scored.log, labels=labels)
    write_predictions(silent, scored.log.truths, tmp_path / "silent")
    head = measure(scored.config, scored.window, str(tmp_path / "silent")).heads[1]
    assert head.model.auc is None and head.model.undefined["auc"] == "no row has label 1"
    assert head.model.log_loss is not None
    assert head.auc_gap is None
    assert all(comparison.auc is None for comparison in head.against.values())


def test_the_model_ranks_as_its_scores_say(scored: Scored) -> None:
    noise = np.random.default_rng(5).normal(scale=0.3, size=scored.log.truths.shape)
    logits = np.log(scored.log.truths / (1 - scored.log.truths)) + noise
    scores = (1 / (1 + np.exp(-logits)))[scored.log.days == 5][..., 0].ravel().astype(np.float32)
    labels, _ = last_day(scored)
    assert measured(scored).heads[0].model.auc == auc(labels, scores)
