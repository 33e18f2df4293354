from pathlib import Path

import numpy as np
import pytest
from scored_log import Log, config_of, simulate, write_log

from thaw.components.evaluate import baselines
from thaw.components.evaluate.baselines import Baselines, Tally, fit, fit_logistic
from thaw.components.evaluate.metrics import auc, row_log_losses
from thaw.components.evaluate.rows import Ids, Rows


def fitted(log: Log, folder: Path) -> Baselines:
    return fit(config_of(folder), write_log(log, folder))


def all_present(ids: np.ndarray) -> Ids:
    return Ids(ids, np.ones(len(ids), np.bool_))


def rows_of(log: Log, day: int) -> Rows:
    requests = log.days == day
    num_candidates = log.items.shape[1]
    return Rows(
        all_present(np.repeat(log.users[requests], num_candidates)),
        all_present(log.items[requests].ravel()),
        log.labels[requests].reshape(-1, 2),
    )


def test_a_tally_counts_each_id_exactly_and_leaves_out_the_missing() -> None:
    ids = Ids(np.array([5, 2**53 + 1, 5, 2**53, 0]), np.array([True, True, True, True, False]))
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 1]], np.int8)
    tally = Tally.of(ids, labels)
    assert tally.ids.tolist() == [5, 2**53, 2**53 + 1]
    assert tally.num_rows.tolist() == [2, 1, 1]
    assert tally.num_positives.tolist() == [[1, 0], [0, 1], [1, 1]]
    parts = [Tally.of(Ids(ids.values[part], ids.present[part]), labels[part]) for part in (slice(0, 2), slice(2, 5))]
    total = Tally.total(parts)
    assert total.ids.tolist() == tally.ids.tolist()
    assert total.num_positives.tolist() == tally.num_positives.tolist()


def test_the_tallies_are_those_of_the_window_without_the_evaluation_day(tmp_path: Path) -> None:
    log = simulate(new_users=10)
    window = fitted(log, tmp_path).window
    trained = log.days < 5
    assert window.num_rows == trained.sum() * 4
    assert window.num_positives.tolist() == log.labels[trained].sum(axis=(0, 1)).tolist()
    assert set(window.users.ids) == set(log.users[trained])
    assert set(window.items.ids) == set(log.items[trained].ravel())
    user = log.users[0]
    place = int(np.searchsorted(window.users.ids, user))
    assert window.users.num_rows[place] == 4 * (log.users[trained] == user).sum()


def test_an_unknown_user_with_an_unknown_item_gets_the_intercept(tmp_path: Path) -> None:
    model = fitted(simulate(), tmp_path)
    unknown = Rows(
        Ids(np.array([999, 0]), np.array([True, False])), all_present(np.array([998, 997])), np.zeros((2, 2))
    )
    expected = 1 / (1 + np.exp(-model.weights[:, 0]))
    np.testing.assert_allclose(model.id_means(unknown), np.tile(expected, (2, 1)))
    np.testing.assert_allclose(model.global_mean(unknown), np.tile(model.window.means, (2, 1)))


def test_the_means_know_who_likes_what(tmp_path: Path) -> None:
    log = simulate(num_requests=400)
    model, rows = fitted(log, tmp_path), rows_of(log, 5)
    means, truth = model.id_means(rows)[:, 0], log.truths[log.days == 5][..., 0].ravel()
    assert auc(rows.labels[:, 0], means) > auc(rows.labels[:, 0], truth) - 0.01
    assert (model.weights[0, 1:] > 1).all()  # a mean over many items flattens what the user does to one


def test_means_of_noise_are_not_believed(tmp_path: Path) -> None:
    """A fit on the rows that made the means would trust them, and pay for it on the evaluation day."""
    log = simulate(spread=0, num_users=2000, num_requests=500)
    model, rows = fitted(log, tmp_path), rows_of(log, 5)
    labels = rows.labels[:, 0]
    loss, of_mean = (row_log_losses(labels, p[:, 0]).mean() for p in (model.id_means(rows), model.global_mean(rows)))
    assert loss < of_mean + 0.005
    assert np.abs(model.weights[:, 1]).max() < 0.3


def test_a_window_of_one_day_has_the_prior_weights(tmp_path: Path) -> None:
    log = simulate(num_days=2)
    model = fitted(log, tmp_path)
    np.testing.assert_array_equal(model.weights[:, 1:], 1)
    assert auc(rows_of(log, 1).labels[:, 0], model.id_means(rows_of(log, 1))[:, 0]) > 0.7


def test_one_label_throughout_gives_finite_scores(tmp_path: Path) -> None:
    log = simulate()
    log.labels[..., 1] = 0
    scores = fitted(log, tmp_path).id_means(rows_of(log, 5))[:, 1]
    assert np.isfinite(scores).all()
    assert 0 < scores.max() < 0.01


def test_the_fit_reads_a_bounded_number_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = simulate(num_days=11)
    whole = fitted(log, tmp_path / "a")
    monkeypatch.setattr(baselines, "MAX_FIT_REQUESTS", 150)
    bounded = fitted(log, tmp_path / "b")
    assert not np.array_equal(bounded.weights, whole.weights)
    assert bounded.window.num_rows == whole.window.num_rows


def test_the_fit_is_where_the_penalized_gradient_vanishes() -> None:
    rng = np.random.default_rng(0)
    features = np.column_stack([np.ones(200), rng.normal(scale=3, size=(200, 2))])
    labels, centre = (features[:, 1] > 0).astype(int), np.array([8.0, 1.0, 1.0])
    weights = fit_logistic(features, labels, centre)
    scores = 1 / (1 + np.exp(-features @ weights))
    assert np.abs(features.T @ (scores - labels) + weights - centre).max() < 1e-6
