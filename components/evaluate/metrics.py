"""Exact metrics of one head over all rows, wherever the rows were scored.

Shapes: N rows (candidates), R requests. `labels_N` is 0 or 1, `scores_N` are probabilities in float64, `requests_N`
numbers the request of each row, ascending, the candidates of a request in the order of the log.

Nothing here is averaged over ranks: an AUC of the whole is no mean of the AUCs of the parts.
Source: https://github.com/facebookresearch/dlrm/pull/324
"""

import numpy as np
from numpy.typing import NDArray

from thaw.components.evaluate.result import CalibrationBin, Metrics

EPSILON = 1e-7
"""Probabilities are clipped to EPSILON ... 1 - EPSILON before a logarithm: a float32 sigmoid reaches 0 and 1."""


def measure_scores(labels_N: NDArray, scores_N: NDArray, requests_N: NDArray | None, k: int, num_bins: int) -> Metrics:
    """Every metric of one scorer; one that the rows cannot define is None, and `undefined` says why.

    Args:
        labels_N: 0 or 1.
        scores_N: Probabilities.
        requests_N: The request of each row, or None where the requests are not whole, which leaves HIT@k out.
        k: Of HIT@k.
        num_bins: Bins of the calibration error.
    """
    num_rows, num_positives = len(labels_N), int(labels_N.sum())
    undefined: dict[str, str] = {}
    if requests_N is None:
        undefined["hit"] = "rows were taken out of their requests"
    if num_rows == 0:
        undefined |= dict.fromkeys(("auc", "log_loss", "ne", "calibration", "ece", "hit"), "there are no rows")
    elif num_positives == 0:
        undefined |= dict.fromkeys(("auc", "ne", "calibration", "hit"), "no row has label 1")
    elif num_positives == num_rows:
        undefined |= dict.fromkeys(("auc", "ne"), "every row has label 1")
    log_loss = None if "log_loss" in undefined else float(row_log_losses(labels_N, scores_N).mean())
    return Metrics(
        num_rows=num_rows,
        num_positives=num_positives,
        auc=None if "auc" in undefined else auc(labels_N, scores_N),
        log_loss=log_loss,
        ne=None if "ne" in undefined or log_loss is None else log_loss / _entropy(num_positives / num_rows),
        calibration=None if "calibration" in undefined else float(scores_N.sum() / num_positives),
        ece=None if "ece" in undefined else _ece(calibration_bins(labels_N, scores_N, num_bins)),
        hit=None if requests_N is None or "hit" in undefined else hit_rate(labels_N, scores_N, requests_N, k),
        undefined=undefined,
    )


def twice_midranks(values_N: NDArray) -> NDArray[np.int64]:
    """Twice the rank of each value, from 2; equal values share their mean rank. Twice, so that it is an integer."""
    order = np.argsort(values_N, kind="stable")
    ordered = values_N[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))[: len(values_N)]
    ends = np.append(starts[1:], len(values_N))
    ranks = np.empty(len(values_N), np.int64)
    ranks[order] = np.repeat(starts + ends + 1, ends - starts)
    return ranks


def auc(labels_N: NDArray, scores_N: NDArray) -> float:
    """Area under the ROC curve by the rank sum, in integers until the last division. Needs both labels."""
    positive = labels_N == 1
    num_positives = int(positive.sum())
    num_pairs = num_positives * (len(labels_N) - num_positives)
    twice_rank_sum = int(twice_midranks(scores_N)[positive].sum())
    return (twice_rank_sum - num_positives * (num_positives + 1)) / (2 * num_pairs)


def row_log_losses(labels_N: NDArray, scores_N: NDArray) -> NDArray[np.float64]:
    """Binary cross-entropy of each row, in nats."""
    clipped = np.clip(scores_N.astype(np.float64), EPSILON, 1 - EPSILON)
    return -np.log(np.where(labels_N == 1, clipped, 1 - clipped))


def calibration_bins(labels_N: NDArray, scores_N: NDArray, num_bins: int) -> tuple[CalibrationBin, ...]:
    """Up to `num_bins` bins between quantiles of the score; rows of one score are never parted, so ties give fewer."""
    if not len(scores_N):
        return ()
    edges = np.quantile(scores_N, np.linspace(0, 1, num_bins + 1))
    bins_N = np.clip(np.searchsorted(edges, scores_N, side="right") - 1, 0, num_bins - 1)
    rows = np.bincount(bins_N, minlength=num_bins)
    predicted = np.bincount(bins_N, scores_N, minlength=num_bins)
    observed = np.bincount(bins_N, labels_N, minlength=num_bins)
    return tuple(
        CalibrationBin(num_rows=int(rows[i]), predicted=predicted[i] / rows[i], observed=observed[i] / rows[i])
        for i in np.flatnonzero(rows)
    )


def hit_rate(labels_N: NDArray, scores_N: NDArray, requests_N: NDArray, k: int) -> float:
    """HIT@k over the requests with a label 1. Equal scores rank in the order of the candidates."""
    num_requests = int(requests_N[-1]) + 1
    order = np.lexsort((-scores_N, requests_N))
    starts_R = np.searchsorted(requests_N, np.arange(num_requests))
    in_top = np.arange(len(order)) - starts_R[requests_N] < k
    positives_R = np.bincount(requests_N, labels_N, minlength=num_requests)
    hits_R = np.bincount(requests_N[in_top], labels_N[order][in_top], minlength=num_requests)
    return float((hits_R > 0).sum() / (positives_R > 0).sum())


def _ece(bins: tuple[CalibrationBin, ...]) -> float:
    num_rows = sum(part.num_rows for part in bins)
    return sum(abs(part.predicted - part.observed) * part.num_rows for part in bins) / num_rows


def _entropy(rate: float) -> float:
    return float(-rate * np.log(rate) - (1 - rate) * np.log(1 - rate))
