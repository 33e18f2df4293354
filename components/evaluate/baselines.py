"""Two honest baselines, fitted on the window alone: what a table of averages knows without any model.

global mean           the window's share of label 1, for every row
user and item means   logit p = a + b * user + c * item, where user (item) is how far the smoothed mean of the user's
                      (item's) rows is from the global mean, in logits; 0 for one that the window doesn't hold

A mean that contains a row's own label tells that label, and leaving the row out tells it backwards. So a, b and c are
fitted as they will be used: means of the earlier days, weights on the rows of the window's last fifth. The means are
then taken over the whole window. With only one day nothing is fitted: b = c = 1.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from thaw.components.config import RunConfig
from thaw.components.config.data import Data
from thaw.components.evaluate.rows import Ids, Rows, read_log
from thaw.components.select_window.window import DataFile, Window

SMOOTHING_ROWS = 10
"""A mean begins with this many rows of the global mean."""
MAX_FIT_REQUESTS = 200_000
"""The three weights of a head need no more; what is above it of the last days is counted and not fitted on."""
NUM_READERS = 8


@dataclass(frozen=True)
class Tally:
    """Rows and labels of each of K distinct ids."""

    ids: NDArray[np.int64]
    """[K] Ascending."""
    num_rows: NDArray[np.int64]
    """[K]"""
    num_positives: NDArray[np.int64]
    """[K, H]"""

    @classmethod
    def of(cls, ids: Ids, labels_NH: NDArray) -> "Tally":
        """Of rows; those without an id don't count."""
        labels_NH = labels_NH[ids.present].astype(np.int64)
        return cls._grouped(ids.values[ids.present], np.ones(len(labels_NH), np.int64), labels_NH)

    @classmethod
    def total(cls, tallies: Sequence["Tally"]) -> "Tally":
        """Of all rows of several tallies."""
        return cls._grouped(
            np.concatenate([tally.ids for tally in tallies]),
            np.concatenate([tally.num_rows for tally in tallies]),
            np.concatenate([tally.num_positives for tally in tallies]),
        )

    @classmethod
    def _grouped(cls, ids: NDArray, num_rows: NDArray, num_positives: NDArray) -> "Tally":
        order = np.argsort(ids, kind="stable")
        ids_K, starts = np.unique(ids[order], return_index=True)
        if not len(ids_K):
            return cls(ids_K, num_rows, num_positives)
        return cls(ids_K, np.add.reduceat(num_rows[order], starts), np.add.reduceat(num_positives[order], starts))

    def find(self, ids: Ids) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Which rows' ids are among these, and their places where they are."""
        places = np.searchsorted(self.ids, ids.values)
        inside = np.minimum(places, max(len(self.ids) - 1, 0))
        known = ids.present & (self.ids[inside] == ids.values) if len(self.ids) else np.zeros_like(ids.present)
        return known, inside

    def offsets(self, ids: Ids, means_H: NDArray) -> NDArray[np.float64]:
        """Logit of each row's smoothed mean minus logit of the global mean, by head; 0 where the id is unknown."""
        smoothed_KH = (self.num_positives + SMOOTHING_ROWS * means_H) / (self.num_rows[:, None] + SMOOTHING_ROWS)
        offsets_KH = _logit(smoothed_KH) - _logit(means_H)
        known, places = self.find(ids)
        offsets_NH = np.zeros((len(known), len(means_H)))
        offsets_NH[known] = offsets_KH[places[known]]
        return offsets_NH


@dataclass(frozen=True)
class WindowTally:
    """What the averages know of some days."""

    num_rows: int
    num_positives: NDArray[np.int64]
    """[H]"""
    users: Tally
    items: Tally

    @classmethod
    def of(cls, rows: Rows) -> "WindowTally":
        """Of rows."""
        return cls(
            num_rows=len(rows.labels),
            num_positives=rows.labels.sum(axis=0, dtype=np.int64),
            users=Tally.of(rows.users, rows.labels),
            items=Tally.of(rows.items, rows.labels),
        )

    @classmethod
    def total(cls, tallies: Sequence["WindowTally"]) -> "WindowTally":
        """Of all rows of several tallies."""
        return cls(
            num_rows=sum(tally.num_rows for tally in tallies),
            num_positives=np.sum([tally.num_positives for tally in tallies], axis=0),
            users=Tally.total([tally.users for tally in tallies]),
            items=Tally.total([tally.items for tally in tallies]),
        )

    @property
    def means(self) -> NDArray[np.float64]:
        """[H] Share of label 1, with half a row of each label added, so that it is neither 0 nor 1."""
        return (self.num_positives + 0.5) / (self.num_rows + 1)

    def features(self, rows: Rows) -> NDArray[np.float64]:
        """[N, H, 3]: 1, the user's offset, the item's offset."""
        users_NH = self.users.offsets(rows.users, self.means)
        items_NH = self.items.offsets(rows.items, self.means)
        return np.stack([np.ones_like(users_NH), users_NH, items_NH], axis=2)


@dataclass(frozen=True)
class Baselines:
    """Both baselines, fitted."""

    window: WindowTally
    weights: NDArray[np.float64]
    """[H, 3] Of 1, the user's offset, the item's offset."""

    def global_mean(self, rows: Rows) -> NDArray[np.float64]:
        """[N, H] probabilities."""
        return np.tile(self.window.means, (len(rows.labels), 1))

    def id_means(self, rows: Rows) -> NDArray[np.float64]:
        """[N, H] probabilities."""
        return _sigmoid(np.einsum("nhf,hf->nh", self.window.features(rows), self.weights))


def fit(config: RunConfig, window: Window) -> Baselines:
    """Count the window's rows by user and by item, in one pass over its files, and fit the weights."""
    files = sorted(window.training, key=lambda file: (str(file.day), file.uri))
    days = sorted({str(file.day) for file in files})
    last_days = set(days[len(days) - -(-len(days) // 5) :]) if len(days) > 1 else set()
    with ThreadPoolExecutor(NUM_READERS) as pool:
        tallies = list(pool.map(partial(_tally, config.data), files))
    whole = WindowTally.total(tallies)
    centre_H3 = np.stack([_logit(whole.means), np.ones(len(whole.means)), np.ones(len(whole.means))], axis=1)
    if not last_days:
        return Baselines(whole, centre_H3)
    earlier = WindowTally.total([tally for file, tally in zip(files, tallies) if str(file.day) not in last_days])
    rows = list(_rows(config.data, (file for file in files if str(file.day) in last_days)))
    features_NH3 = np.concatenate([earlier.features(part) for part in rows])
    labels_NH = np.concatenate([part.labels for part in rows])
    weights = [fit_logistic(features_NH3[:, h], labels_NH[:, h], centre) for h, centre in enumerate(centre_H3)]
    return Baselines(whole, np.stack(weights))


def fit_logistic(features_NF: NDArray, labels_N: NDArray, centre_F: NDArray) -> NDArray[np.float64]:
    """Weights of a logistic regression by Newton's method, with a normal prior of variance 1 around `centre_F`.

    The prior holds a weight that the rows say nothing about, and keeps all finite where they all have one label.
    """

    def objective(weights_F: NDArray) -> float:
        logits_N = features_NF @ weights_F
        fit = np.logaddexp(0, logits_N).sum() - logits_N[labels_N == 1].sum()
        return float(fit + np.square(weights_F - centre_F).sum() / 2)

    weights_F = centre_F.astype(np.float64)
    for _ in range(50):
        scores_N = _sigmoid(features_NF @ weights_F)
        gradient_F = features_NF.T @ (scores_N - labels_N) + weights_F - centre_F
        curvature_FF = (features_NF * (scores_N * (1 - scores_N))[:, None]).T @ features_NF + np.eye(len(centre_F))
        step_F = np.linalg.solve(curvature_FF, gradient_F)
        scale, start = 1.0, objective(weights_F)
        while objective(weights_F - scale * step_F) > start and scale > 1e-6:
            scale /= 2
        weights_F = weights_F - scale * step_F
        if np.abs(step_F).max() < 1e-8:
            break
    return weights_F


def _tally(data: Data, file: DataFile) -> WindowTally:
    empty = Ids(np.empty(0, np.int64), np.empty(0, np.bool_))
    none = WindowTally.of(Rows(empty, empty, np.empty((0, len(data.heads)), np.int8)))
    return WindowTally.total([none, *(WindowTally.of(group.rows) for group in read_log(data, file))])


def _rows(data: Data, files: Iterable[DataFile]) -> Iterable[Rows]:
    num_requests = 0
    for file in files:
        for group in read_log(data, file):
            if num_requests >= MAX_FIT_REQUESTS:
                return
            num_requests += len(group.request_ids)
            yield group.rows


def _logit(probabilities: NDArray) -> NDArray[np.float64]:
    return np.log(probabilities) - np.log1p(-probabilities)


def _sigmoid(logits: NDArray) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0, -logits))
