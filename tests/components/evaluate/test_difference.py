import numpy as np
import pytest

from thaw.components.evaluate.difference import compare
from thaw.components.evaluate.metrics import auc, row_log_losses


def log_of_users(num_users: int, rows_per_user: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Labels, a good scorer, a fair scorer and users; rows of one user resemble each other."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(num_users), rows_per_user)
    logits = rng.normal(scale=1.5, size=num_users)[users]
    labels = (rng.random(len(users)) < 1 / (1 + np.exp(-logits))).astype(int)
    good, fair = (1 / (1 + np.exp(-logits - rng.normal(scale=s, size=num_users)[users])) for s in (0.5, 1.5))
    return labels, good, fair, users


def test_a_scorer_against_itself_differs_by_nothing() -> None:
    labels, good, _, users = log_of_users(20, 3)
    comparison = compare(labels, good, good, users)
    assert comparison.auc is not None and comparison.log_loss is not None
    assert (comparison.auc.value, comparison.auc.margin) == (0, 0)
    assert not comparison.auc.is_clear and not comparison.log_loss.is_clear


def test_the_margin_is_that_of_resampling_the_users() -> None:
    labels, good, fair, users = log_of_users(300, 5)
    comparison = compare(labels, good, fair, users)
    rng = np.random.default_rng(1)
    rows_of = users.reshape(300, 5) * 5 + np.arange(5)
    aucs, losses = [], []
    for _ in range(400):
        rows = rows_of[rng.integers(300, size=300)].ravel()
        aucs.append(auc(labels[rows], good[rows]) - auc(labels[rows], fair[rows]))
        losses.append((row_log_losses(labels[rows], good[rows]) - row_log_losses(labels[rows], fair[rows])).mean())
    assert comparison.auc is not None and comparison.log_loss is not None
    assert comparison.auc.margin == pytest.approx(1.96 * np.std(aucs), rel=0.15)
    assert comparison.log_loss.margin == pytest.approx(1.96 * np.std(losses), rel=0.15)


def test_more_rows_of_the_same_users_are_not_taken_for_more_evidence() -> None:
    labels, good, fair, users = log_of_users(100, 3)
    once = compare(labels, good, fair, users)
    often = compare(*(np.repeat(values, 10) for values in (labels, good, fair, users)))
    assert once.auc is not None and often.auc is not None
    assert often.auc.margin == pytest.approx(once.auc.margin)


def test_one_class_leaves_the_auc_open_and_one_user_the_margin() -> None:
    comparison = compare(np.zeros(3, int), np.full(3, 0.1), np.full(3, 0.2), np.zeros(3, int))
    assert comparison.auc is None
    assert comparison.log_loss is not None and comparison.log_loss.value < 0
    assert comparison.log_loss.margin is None and not comparison.log_loss.is_clear
