"""Which runs are promoted: those whose evaluation passes a gate."""

import math
from typing import Literal

from pydantic import Field, model_validator

from thaw.components.config.section import Section

LESS_IS_BETTER = ("log_loss", "ne", "ece")

GREATEST = {"auc": 1.0, "hit": 1.0, "ece": 1.0}
"""What a metric can be at most. All begin at 0, and the others have no end."""


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
        bound: float | None = getattr(self, right)
        if bound is None and self.max_drop is None:
            raise ValueError(
                f"{self.metric} has no bound, and every run would pass; give promotion.{right} or promotion.max_drop"
            )
        greatest = GREATEST.get(self.metric, math.inf)
        if bound is not None and not 0 <= bound <= greatest:
            values = f"between 0 and {greatest:g}" if self.metric in GREATEST else "at least 0"
            raise ValueError(f"promotion.{right} is {bound:g}, and {self.metric} is {values}")
        return self

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller number is the better one."""
        return self.metric in LESS_IS_BETTER
