"""From the predictions of all ranks to the finding: one reading, one set of exact numbers."""

import numpy as np
from numpy.typing import NDArray

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.data import Head
from thaw.components.evaluate import baselines
from thaw.components.evaluate.difference import compare
from thaw.components.evaluate.metrics import calibration_bins, measure_scores
from thaw.components.evaluate.predictions import Predictions, check_complete, read_predictions
from thaw.components.evaluate.result import GLOBAL_MEAN, ID_MEANS, Cold, EvaluationResult, HeadResult, Metrics
from thaw.components.evaluate.truth import read_truth
from thaw.components.select_window.window import Window


def measure(config: RunConfig, window: Window, predictions_uri: str) -> EvaluationResult:
    """Every number of the report.

    All rows are held in memory: about 40 bytes a row and 5 more a head.

    Args:
        config: The run's document.
        window: The run's files.
        predictions_uri: Folder of `evaluation/` and `train/`, each with one part a rank.

    Raises:
        ValueError: the predictions are not what the evaluation days ask for, or files don't fit the configuration.
    """
    heads = [head.name for head in config.data.heads]
    evaluation = read_predictions(storage.join(predictions_uri, "evaluation"), heads)
    train = read_predictions(storage.join(predictions_uri, "train"), heads)
    check_complete(evaluation, config, window)

    fitted = baselines.fit(config, window)
    scores = {GLOBAL_MEAN: fitted.global_mean(evaluation.rows), ID_MEANS: fitted.id_means(evaluation.rows)}
    cold_users_N = ~fitted.window.users.find(evaluation.rows.users)[0]
    cold_items_N = ~fitted.window.items.find(evaluation.rows.items)[0]
    cold_N = cold_users_N | cold_items_N
    users_N, num_users = _number_users(evaluation)
    truth_NH = None
    if config.data.truth_path is not None and window.truth:
        evaluated = [file for file in window.truth if file.day is None or file.day in window.evaluation_days]
        truth_NH = read_truth(evaluated, heads, evaluation)

    def head_result(h: int, head: Head) -> HeadResult:
        labels_N, scores_N = evaluation.rows.labels[:, h], evaluation.scores[:, h].astype(np.float64)
        model = _metrics(config, labels_N, scores_N, evaluation.requests)
        sample = _metrics(config, train.rows.labels[:, h], train.scores[:, h].astype(float), train.requests)
        bayes = None if truth_NH is None else _metrics(config, labels_N, truth_NH[:, h], evaluation.requests)
        return HeadResult(
            name=head.name,
            better=head.better,
            model=model,
            calibration_bins=calibration_bins(labels_N, scores_N, config.evaluation.num_calibration_bins),
            baselines={
                name: _metrics(config, labels_N, other[:, h], evaluation.requests) for name, other in scores.items()
            },
            against={name: compare(labels_N, scores_N, other[:, h], users_N) for name, other in scores.items()},
            warm=_metrics(config, labels_N[~cold_N], scores_N[~cold_N], None),
            train=sample,
            auc_gap=_minus(sample.auc, model.auc),
            log_loss_gap=_minus(model.log_loss, sample.log_loss),
            bayes=bayes,
            auc_from_bayes=None if bayes is None else _minus(model.auc, bayes.auc),
            excess_log_loss=None if bayes is None else _minus(model.log_loss, bayes.log_loss),
        )

    return EvaluationResult(
        num_rows=len(evaluation.requests),
        num_requests=len(evaluation.request_ids),
        num_users=num_users,
        num_train_rows=len(train.requests),
        num_window_rows=fitted.window.num_rows,
        hit_k=config.evaluation.hit_k,
        cold=Cold(users=_share(cold_users_N), items=_share(cold_items_N), either=_share(cold_N)),
        heads=tuple(head_result(h, head) for h, head in enumerate(config.data.heads)),
    )


def _metrics(config: RunConfig, labels_N: NDArray, scores_N: NDArray, requests_N: NDArray | None) -> Metrics:
    settings = config.evaluation
    return measure_scores(labels_N, scores_N, requests_N, settings.hit_k, settings.num_calibration_bins)


def _number_users(predictions: Predictions) -> tuple[NDArray[np.int64], int]:
    """A number from 0 for each row's user, and how many users there are; a request without a user is one of its own."""
    users = predictions.rows.users
    distinct, numbers_N = np.unique(users.values, return_inverse=True)
    own_N = len(distinct) + predictions.requests
    _, numbers_N = np.unique(np.where(users.present, numbers_N, own_N), return_inverse=True)
    return numbers_N, len(np.unique(users.values[users.present]))


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _share(rows_N: NDArray[np.bool_]) -> float | None:
    return float(rows_N.mean()) if len(rows_N) else None
