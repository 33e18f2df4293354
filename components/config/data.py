"""The data of a run: where it lies, its columns, its tables, its labels, its window."""

import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from thaw.components.config.section import Section

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
"""A name that we give: lower case, digits and underscores."""


class Table(Section):
    """One ID embedding table. Ids are row numbers, 0 to num_rows - 1."""

    num_rows: int = Field(ge=1, lt=2**63)
    """Rows of the table."""
    out_of_range: Literal["error", "hash", "drop", "overflow"] = "error"
    """What becomes of an id that is no row number: a refusal with feature, id, day and file; `hash` maps *every* id of
    the table by a 64-bit mix modulo num_rows; `drop` leaves the id out; `overflow` gives it the table's last row.
    Whatever is not `error` is counted per feature in the stage's manifest. A null id is out of range too: where that
    is not an error, it is left out and counted as missing."""


class ContextFeature(Section):
    """A feature of the request that goes into the dense half beside the embeddings."""

    name: Name
    column: str
    kind: Literal["categorical", "numeric"]
    """`categorical`: an integer column, 0 to cardinality - 1. `numeric`: a number, or a list of `width` numbers."""
    cardinality: int | None = Field(default=None, ge=1)
    width: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _check_cardinality(self) -> "ContextFeature":
        if (self.kind == "categorical") != (self.cardinality is not None):
            raise ValueError(f"context feature {self.name!r}: cardinality belongs to kind categorical, and only there")
        return self


class Head(Section):
    """One action that the ranker predicts: its label column, its share of the loss, its sense."""

    name: Name
    column: str
    """0 or 1 for each candidate: a list as long as `candidates`, or one number where there is one candidate."""
    weight: float = Field(default=1.0, gt=0)
    """Weight of the head's binary cross-entropy; weights are normalized to sum 1."""
    engagement: bool = False
    """Whether a label of 1 makes (user, candidate) a positive pair of the contrastive loss."""
    better: Literal["up", "down"] = "up"
    """Whether the product wants more of it (save) or less (hide). Read by the report alone."""


class RequestColumns(Section):
    """The columns of the request log. `None` says that the log has no such column."""

    request_id: str = "request_id"
    """int64, unique over the log."""
    user_id: str = "user_id"
    """int64, a row of the user table."""
    candidates: str = "candidates"
    """int64 or list<int64>: the items shown, rows of the item table."""
    history: str | None = "history"
    """list<int64>: the items that the user acted on before the request, the most recent first."""
    history_action: str | None = None
    """list<int>: the action taken on each item of the history, 0 to num_history_actions - 1."""
    history_age_s: str | None = None
    """list<int>: how long before the request each item of the history was acted on, in seconds."""


class Engagements(Section):
    """The log that the backbone is pretrained on: one row a (user, item, action)."""

    path: str = "engagements"
    user_id: str = "user_id"
    item_id: str = "item_id"
    action: str | None = "action"
    """A column of strings; None takes every row."""
    actions: tuple[str, ...] = ()
    """The actions that count as a positive pair; empty takes all."""


class Patches(Section):
    """Image patches of an item: list<float> of num * width numbers."""

    column: str = "patches"
    num: int = Field(ge=1)
    width: int = Field(ge=1)


class Tokens(Section):
    """Text tokens of an item: list<int>, at most max_length, each 0 to vocabulary_size - 1."""

    column: str = "tokens"
    max_length: int = Field(ge=1)
    vocabulary_size: int = Field(ge=1)


class Items(Section):
    """The content of the items: one row an item, in files that are not partitioned by day."""

    path: str = "items.parquet"
    item_id: str = "item_id"
    patches: Patches | None = None
    tokens: Tokens | None = None


class DemoData(Section):
    """Have `thaw run` generate the demo log first (`thaw data demo`), from the run's seed."""

    kind: Literal["demo"] = "demo"
    size: Literal["S", "M", "V3"]
    num_window_days: Literal[10, 20] = 10


class MovieLensData(Section):
    """Have `thaw run` fetch MovieLens-100k first (`thaw data movielens`)."""

    kind: Literal["movielens"] = "movielens"


class Window(Section):
    """Which days are trained on and which are evaluated, by calendar arithmetic from D.

    D is the first day that training never reads: the window is D - num_days ... D - 1, the evaluation days are
    D ... D + num_evaluation_days - 1.
    """

    date: datetime.date | None = None
    """D, as YYYY-MM-DD. A run may name another (`--date`)."""
    num_days: int = Field(ge=1)
    num_evaluation_days: int = Field(default=1, ge=1)
    max_missing_days: int = Field(default=0, ge=0)
    """How many days of the window may be absent or empty. Never more than this, and no older day takes their place."""


class Data(Section):
    """Where the log lies and what its columns mean."""

    uri: str | None = None
    """Folder of the data set, any fsspec URI. None with `generate`: `<root>/data/<data set>`."""
    generate: Annotated[DemoData | MovieLensData, Field(discriminator="kind")] | None = None
    day_key: str = Field(default="day", pattern=r"^[^/=]+$")
    """Partition key: day folders are named `<day_key>=YYYY-MM-DD`."""
    day_complete_marker: str | None = None
    """Name of a file (for instance _SUCCESS) without which a day counts as missing."""
    requests_path: str = "requests"
    truth_path: str | None = None
    """Where the true probabilities lie (generated data only). Read by the evaluate step alone."""
    window: Window
    columns: RequestColumns = RequestColumns()
    num_history_actions: int | None = Field(default=None, ge=1)
    engagements: Engagements = Engagements()
    items: Items | None = None
    user_table: Table
    item_table: Table
    context: tuple[ContextFeature, ...] = ()
    heads: tuple[Head, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> "Data":
        if self.uri is None and self.generate is None:
            raise ValueError("data: name a uri, or a data set to generate")
        for what, names in (
            ("head", [head.name for head in self.heads]),
            ("context feature", [feature.name for feature in self.context]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"data: two {what}s have one name: {names}")
        if (self.columns.history_action is None) != (self.num_history_actions is None):
            raise ValueError("data: columns.history_action and num_history_actions go together")
        if self.columns.history is None and (self.columns.history_action or self.columns.history_age_s):
            raise ValueError("data: history_action and history_age_s need a history column")
        return self

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return {"user": self.user_table, "item": self.item_table}
