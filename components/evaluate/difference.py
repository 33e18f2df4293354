"""How sure a difference of two scorers is.

Users are the units that vary: rows of one user resemble each other, so an interval that took rows as independent would
be too narrow. Both differences are sums over users of a first-order term, whose spread over the users gives the margin.
Source: DeLong et al. 1988 (paired AUCs); Obuchowski 1997 (clustered).
"""

import numpy as np
from numpy.typing import NDArray

from thaw.components.evaluate.metrics import auc, row_log_losses, twice_midranks
from thaw.components.evaluate.result import Comparison, Difference

Z_95 = 1.96


def compare(labels_N: NDArray, model_N: NDArray, baseline_N: NDArray, users_N: NDArray) -> Comparison:
    """Model minus baseline in AUC and in log-loss; None where the rows don't define them.

    Args:
        labels_N: 0 or 1.
        model_N: The model's scores.
        baseline_N: The baseline's scores of the same rows.
        users_N: A number from 0 for each user.
    """
    num_rows, num_positives = len(labels_N), int(labels_N.sum())
    auc_difference = log_loss_difference = None
    if num_rows:
        losses_N = row_log_losses(labels_N, model_N) - row_log_losses(labels_N, baseline_N)
        value = float(losses_N.mean())
        terms_U = np.bincount(users_N, losses_N - value) / num_rows
        log_loss_difference = Difference(value=value, margin=_margin(terms_U))
    if 0 < num_positives < num_rows:
        terms_N = _auc_terms(labels_N, model_N) - _auc_terms(labels_N, baseline_N)
        auc_difference = Difference(
            value=auc(labels_N, model_N) - auc(labels_N, baseline_N),
            margin=_margin(np.bincount(users_N, terms_N)),
        )
    return Comparison(auc=auc_difference, log_loss=log_loss_difference)


def _auc_terms(labels_N: NDArray, scores_N: NDArray) -> NDArray[np.float64]:
    """Each row's part in the AUC's error: how far the share of the other class that it beats is from the AUC."""
    positive = labels_N == 1
    num_positives = int(positive.sum())
    num_negatives = len(labels_N) - num_positives
    own_class = np.empty(len(labels_N), np.int64)
    own_class[positive] = twice_midranks(scores_N[positive])
    own_class[~positive] = twice_midranks(scores_N[~positive])
    below_N = (twice_midranks(scores_N) - own_class) / 2
    value = below_N[positive].mean() / num_negatives
    return np.where(
        positive,
        (below_N / num_negatives - value) / num_positives,
        (1 - below_N / num_positives - value) / num_negatives,
    )


def _margin(terms_U: NDArray) -> float | None:
    num_users = len(terms_U)
    if num_users < 2:
        return None
    return float(Z_95 * np.sqrt(np.square(terms_U).sum() * num_users / (num_users - 1)))
