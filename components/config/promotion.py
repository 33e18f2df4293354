"""Which runs are promoted: those whose evaluation passes a gate."""

from typing import Literal

from pydantic import Field, model_validator

from thaw.components.config.section import Section

LESS_IS_BETTER = ("log_loss", "ne", "ece")


class Promotion(Section):
    """The gate. Without this section no run is promoted but by `thaw promote`.

    A run that does not pass is finished all the same, and says why it was not promoted. One that passes claims its
    date: of a date at most one run is promoted, ever.
    """

    head: str
    """Name of the head that is judged."""
    metric: Literal["auc", "hit", "log_loss", "ne", "ece"]
    """As in `metrics.json`, on the evaluation days. Of the first two more is better, of the others less."""
    minimum: float | None = None
    """Of a metric of which more is better."""
    maximum: float | None = None
    """Of a metric of which less is better."""
    max_drop: float | None = Field(default=None, ge=0)
    """How much worse than the promoted run of the latest date before it a run may be. Where there is none yet, a run
    passes."""

    @model_validator(mode="after")
    def _check(self) -> "Promotion":
        wrong, right, more = ("minimum", "maximum", "less") if self.less_is_better else ("maximum", "minimum", "more")
        if getattr(self, wrong) is not None:
            raise ValueError(f"promotion.{wrong}: of {self.metric} {more} is better; give promotion.{right}")
        return self

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller number is the better one."""
        return self.metric in LESS_IS_BETTER
