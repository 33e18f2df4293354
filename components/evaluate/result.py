"""What the evaluation found, as one strict JSON document."""

from typing import Literal

from pydantic import ConfigDict

from thaw.components import storage
from thaw.components.config.section import Section, parsed

GLOBAL_MEAN = "global mean"
ID_MEANS = "user and item means"


class Finding(Section):
    """A part of the document. A number is finite, or None."""

    model_config = ConfigDict(allow_inf_nan=False)


class Metrics(Finding):
    """One scorer of one head over one set of rows. A row is a candidate of a request."""

    num_rows: int
    num_positives: int
    auc: float | None
    """Probability that a row of label 1 scores above one of label 0; a tie counts one half."""
    log_loss: float | None
    """Mean over the rows, in nats."""
    ne: float | None
    """Normalized entropy: log-loss over the log-loss of these rows' own mean label."""
    calibration: float | None
    """Mean score over mean label: above 1 the scorer promises too much."""
    ece: float | None
    """Expected calibration error: mean distance of score and label over quantile bins, weighted by rows."""
    hit: float | None
    """HIT@k: of the requests with a label 1, the share with one among the k highest scores."""
    undefined: dict[str, str] = {}
    """Why a number is None, by its name."""


class CalibrationBin(Finding):
    """Rows of neighbouring scores."""

    num_rows: int
    predicted: float
    """Mean score."""
    observed: float
    """Mean label."""


class Difference(Finding):
    """Model minus baseline on the same rows."""

    value: float
    margin: float | None
    """Half width of the 95% interval, users being the units that vary; None with one user."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.margin is not None and abs(self.value) > self.margin


class Comparison(Finding):
    """The model against one baseline."""

    auc: Difference | None
    log_loss: Difference | None


class HeadResult(Finding):
    """All that was measured of one head."""

    name: str
    better: Literal["up", "down"]
    model: Metrics
    calibration_bins: tuple[CalibrationBin, ...]
    baselines: dict[str, Metrics]
    against: dict[str, Comparison]
    """By baseline."""
    warm: Metrics
    """The model on the rows whose user and item the window holds. No HIT@k: the requests are no longer whole."""
    train: Metrics
    """The model on a sample of the window that it was trained on."""
    auc_gap: float | None
    """AUC of that sample minus AUC of the evaluation rows."""
    log_loss_gap: float | None
    """Log-loss of the evaluation rows minus log-loss of that sample."""
    bayes: Metrics | None
    """The true probabilities as scorer, where they are known: no model is better but by chance."""
    auc_from_bayes: float | None
    """AUC of the model minus that of the true probabilities."""
    excess_log_loss: float | None
    """Log-loss of the model minus that of the true probabilities."""

    @property
    def positive_share(self) -> float | None:
        """Share of the evaluation rows that have label 1."""
        return self.model.num_positives / self.model.num_rows if self.model.num_rows else None

    @property
    def best_baseline(self) -> str:
        """The baseline that ranks best."""
        return max(self.baselines, key=lambda name: (self.baselines[name].auc or 0, name == ID_MEANS))


class Cold(Finding):
    """Share of the evaluation rows that the window knows nothing of; None where there are no rows."""

    users: float | None
    """Rows whose user has no row in the window, or no id."""
    items: float | None
    """Rows whose item has no row in the window, or no id."""
    either: float | None


class EvaluationResult(Finding):
    """The document `metrics.json`."""

    num_rows: int
    num_requests: int
    num_users: int
    """Distinct users of the evaluation rows."""
    num_train_rows: int
    """Rows of the training sample."""
    num_window_rows: int
    """Rows of the window, on which the baselines were fitted."""
    hit_k: int
    cold: Cold
    heads: tuple[HeadResult, ...]

    def figures(self) -> dict[str, float]:
        """The main numbers under flat names, as KFP's metrics take them; what is undefined is left out."""
        figures: dict[str, float | None] = {}
        for head in self.heads:
            best = head.against[head.best_baseline]
            figures |= {
                f"{head.name}_auc": head.model.auc,
                f"{head.name}_log_loss": head.model.log_loss,
                f"{head.name}_ne": head.model.ne,
                f"{head.name}_calibration": head.model.calibration,
                f"{head.name}_ece": head.model.ece,
                f"{head.name}_hit_at_{self.hit_k}": head.model.hit,
                f"{head.name}_auc_over_baseline": None if best.auc is None else best.auc.value,
                f"{head.name}_auc_gap": head.auc_gap,
                f"{head.name}_excess_log_loss": head.excess_log_loss,
            }
        figures |= {"cold_user_share": self.cold.users, "cold_item_share": self.cold.items}
        return {name: value for name, value in figures.items() if value is not None}


def read_result(uri: str) -> EvaluationResult:
    """What an evaluation found, from its `metrics.json`.

    Raises:
        ValueError: it is no such document.
        OSError: it can't be read.
    """
    return parsed(EvaluationResult, storage.read_bytes(uri), uri, "what an evaluation found")
