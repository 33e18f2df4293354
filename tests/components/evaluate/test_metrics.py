import numpy as np
import pytest

from thaw.components.evaluate.metrics import auc, calibration_bins, hit_rate, measure_scores, row_log_losses

# https://github.com/Lightning-AI/pytorch-lightning/issues/4783: parts of AUC 1 and 0 whose mean says .5.
LABELS = np.array([1, 0, 0, 0, 1, 1, 1, 0])
SCORES = np.array([0.4, 0.1, 0.2, 0.3, 0.6, 0.7, 0.8, 0.9])


def pairwise_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    positives, negatives = scores[labels == 1][:, None], scores[labels == 0][None, :]
    return float(((positives > negatives) + 0.5 * (positives == negatives)).mean())


def test_auc_is_of_all_rows_and_no_mean_over_parts() -> None:
    assert auc(LABELS[:4], SCORES[:4]) == 1.0
    assert auc(LABELS[4:], SCORES[4:]) == 0.0
    assert auc(LABELS, SCORES) == 0.75


def test_equal_scores_have_auc_one_half() -> None:
    assert auc(LABELS, np.full(8, 0.5)) == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_auc_counts_pairs_with_ties_as_halves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(2, size=200), rng.integers(10, size=200) / 10
    assert auc(labels, scores) == pytest.approx(pairwise_auc(labels, scores), abs=1e-14)


def test_auc_does_not_depend_on_the_order_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(2, size=1000), rng.random(1000).astype(np.float32)
    order = rng.permutation(1000)
    assert auc(labels, scores) == auc(labels[order], scores[order])


def test_log_loss_stays_finite_at_certainty() -> None:
    losses = row_log_losses(np.array([1, 0, 1]), np.array([1, 1, 0], np.float32))
    assert losses == pytest.approx([1e-7, -np.log(1e-7), -np.log(1e-7)])


def test_the_mean_label_as_score_has_normalized_entropy_one_and_calibration_one() -> None:
    labels = np.array([1, 0, 0, 0])
    metrics = measure_scores(labels, np.full(4, 0.25), np.arange(4), k=1, num_bins=3)
    assert metrics.ne == pytest.approx(1)
    assert metrics.calibration == pytest.approx(1)
    assert metrics.ece == pytest.approx(0)
    assert metrics.log_loss == pytest.approx(-(np.log(0.25) + 3 * np.log(0.75)) / 4)


def test_calibration_is_scores_over_labels() -> None:
    metrics = measure_scores(np.array([1, 0]), np.array([0.9, 0.3]), np.arange(2), k=1, num_bins=2)
    assert metrics.calibration == pytest.approx(1.2)
    assert metrics.ece == pytest.approx((0.1 + 0.3) / 2)


def test_bins_lie_between_quantiles_and_never_part_one_score() -> None:
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    labels = np.array([0, 0, 0, 1, 1, 1])
    bins = calibration_bins(labels, scores, 3)
    assert [part.num_rows for part in bins] == [2, 2, 2]
    assert [part.predicted for part in bins] == pytest.approx([0.15, 0.35, 0.55])
    assert [part.observed for part in bins] == [0, 0.5, 1]
    assert [part.num_rows for part in calibration_bins(labels, np.full(6, 0.5), 3)] == [6]


def test_hit_looks_at_requests_with_a_positive_alone() -> None:
    requests = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    labels = np.array([0, 0, 1, 0, 0, 0, 1, 0])
    scores = np.array([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, 0.1, 0.2])
    assert hit_rate(labels, scores, requests, k=1) == 0.5
    assert hit_rate(labels, scores, requests, k=2) == 1.0


def test_hit_ranks_equal_scores_in_the_order_of_the_candidates() -> None:
    requests, scores = np.zeros(4, int), np.full(4, 0.5)
    assert hit_rate(np.array([0, 1, 0, 0]), scores, requests, k=2) == 1.0
    assert hit_rate(np.array([0, 0, 1, 0]), scores, requests, k=2) == 0.0


@pytest.mark.parametrize(
    ("labels", "undefined"),
    [
        ([0, 0], {"auc", "ne", "calibration", "hit"}),
        ([1, 1], {"auc", "ne"}),
        ([], {"auc", "ne", "calibration", "hit", "log_loss", "ece"}),
    ],
)
def test_what_the_rows_cannot_define_is_none_with_a_reason(labels: list[int], undefined: set[str]) -> None:
    array = np.array(labels, np.int8)
    metrics = measure_scores(array, np.full(len(labels), 0.3), np.zeros(len(labels), int), k=1, num_bins=2)
    numbers = metrics.model_dump(exclude={"num_rows", "num_positives", "undefined"})
    assert {name for name, value in numbers.items() if value is None} == undefined == set(metrics.undefined)
    assert all(metrics.undefined.values())
