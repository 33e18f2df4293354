import pytest

from thaw.components.evaluate import words
from thaw.components.evaluate.result import (
    GLOBAL_MEAN,
    ID_MEANS,
    Cold,
    Comparison,
    Difference,
    EvaluationResult,
    HeadResult,
    Metrics,
)


def metrics(auc: float | None, log_loss: float, calibration: float = 1.0) -> Metrics:
    undefined = {} if auc is not None else {"auc": "no row has label 1"}
    return Metrics(
        num_rows=100, num_positives=20, auc=auc, log_loss=log_loss, ne=0.9, calibration=calibration, ece=0.01, hit=0.5,
        undefined=undefined,
    )  # fmt: skip


def head(auc: float | None, log_loss: float, *, name: str = "click", margin: float = 0.01, calibration: float = 1.0,
         bayes_log_loss: float | None = None) -> HeadResult:  # fmt: skip
    """Against user and item means of AUC .7 and log-loss .5, and a global mean of log-loss .55."""
    model = metrics(auc, log_loss, calibration)
    baselines = {GLOBAL_MEAN: metrics(0.5, 0.55), ID_MEANS: metrics(0.7, 0.5)}

    def difference(value: float | None, other: float | None) -> Difference | None:
        return None if value is None or other is None else Difference(value=value - other, margin=margin)

    return HeadResult(
        name=name,
        better="up",
        model=model,
        calibration_bins=(),
        baselines=baselines,
        against={
            key: Comparison(auc=difference(auc, other.auc), log_loss=difference(log_loss, other.log_loss))
            for key, other in baselines.items()
        },
        warm=model,
        train=model,
        auc_gap=0,
        log_loss_gap=0,
        bayes=None if bayes_log_loss is None else metrics(0.9, bayes_log_loss),
        auc_from_bayes=None,
        excess_log_loss=None if bayes_log_loss is None else log_loss - bayes_log_loss,
    )


def result(*heads: HeadResult) -> EvaluationResult:
    return EvaluationResult(
        num_rows=100, num_requests=25, num_users=20, num_train_rows=100, num_window_rows=1000, hit_k=3,
        cold=Cold(users=0.1, items=0, either=0.1), heads=heads,
    )  # fmt: skip


def test_a_model_above_both_baselines_everywhere_is_said_to_beat_them() -> None:
    assert words.headline(result(head(0.8, 0.45))) == (
        "The model beats both baselines on every head, in ranking and in log-loss."
    )
    assert words.sentence(head(0.8, 0.45, bayes_log_loss=0.4)) == (
        "AUC 0.800, better than both baselines (+0.100 ± 0.010 against user and item means); "
        "log-loss 0.450, better than both baselines (−0.050 ± 0.010 against user and item means), "
        "0.050 above the Bayes optimum."
    )


def test_a_baseline_that_wins_is_named_plainly() -> None:
    loser = head(0.65, 0.52, name="save")
    assert words.headline(result(head(0.8, 0.45), loser)) == "The model loses to a baseline on save."
    assert "AUC 0.650, WORSE than user and item means (−0.050 ± 0.010)" in words.sentence(loser)
    assert "log-loss 0.520, WORSE than user and item means (+0.020 ± 0.010)" in words.sentence(loser)


def test_better_ranking_does_not_hide_a_lost_log_loss() -> None:
    assert words.headline(result(head(0.8, 0.56))) == "The model loses to a baseline on click."


def test_a_difference_inside_its_margin_is_no_win() -> None:
    close = head(0.705, 0.499)
    assert words.headline(result(close, head(0.65, 0.45, name="save"))) == (
        "The model loses to a baseline on save, and is not clearly better on click."
    )
    assert words.headline(result(close)) == "The model is not clearly better than both baselines on click."
    assert "AUC 0.705, level with user and item means (+0.005 ± 0.010)" in words.sentence(close)


def test_what_could_not_be_measured_is_no_win_and_says_why() -> None:
    silent = head(None, 0.45)
    assert words.headline(result(silent)) == "The model is not clearly better than both baselines on click."
    assert words.sentence(silent).startswith("AUC undefined, no row has label 1; log-loss 0.450")


def test_a_result_below_the_optimum_is_called_a_chance_or_a_leak() -> None:
    assert "0.010 BELOW the Bayes optimum: chance, or a leak" in words.sentence(head(0.8, 0.39, bayes_log_loss=0.4))


def test_scores_that_promise_too_much_are_told() -> None:
    assert "its scores add up to 1.40 times the labels" in words.sentence(head(0.8, 0.45, calibration=1.4))
    assert "add up" not in words.sentence(head(0.8, 0.45, calibration=1.05))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.number(None), "–"),
        (words.signed(-0.01234, 3), "−0.012"),
        (words.difference(Difference(value=0.1, margin=None), 2), "+0.10"),
        (words.percent(0.914), "91%"),
        (words.percent(0.0042), "0.4%"),
        (words.percent(0.998), "99.8%"),
        (words.percent(0.0), "0%"),
        (words.duration(8.44), "8.4 s"),
        (words.duration(59.99), "1 min 00 s"),
        (words.duration(200), "3 min 20 s"),
        (words.duration(7500), "2 h 05 min"),
    ],
)
def test_numbers_read_well(text: str, expected: str) -> None:
    assert text == expected
