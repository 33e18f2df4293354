"""The logs of a data set, and their day folders."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.data import Data, Items
from thaw.components.select_window.calendar import days_before, days_from
from thaw.components.select_window.files import list_data_files


@dataclass(frozen=True)
class Log:
    """The wanted days of one log."""

    name: str
    """Of the field of the window document that lists its files."""
    uri: str
    days: tuple[datetime.date, ...]
    day_key: str
    columns: Mapping[str, str]
    """Columns that every file must have, each with the configuration's key that names it."""
    marker: str | None = None
    """Name of the file without which a day is incomplete."""
    max_missing_days: int = 0
    allowance: str | None = None
    """The configuration's key of `max_missing_days`."""

    def folder_uri(self, day: datetime.date) -> str:
        """Where the files of a day lie."""
        return storage.join(self.uri, f"{self.day_key}={day.isoformat()}")


@dataclass
class DayFolder:
    """What a log has for a day."""

    log: Log
    day: datetime.date
    files: list[storage.FileInfo] = field(default_factory=list)
    num_ignored: int = 0
    """Names that are no data."""
    absence: str | None = None
    """Why the day counts as missing; None where it does not."""


def wanted_logs(config: RunConfig, data_uri: str, date: datetime.date) -> list[Log]:
    """What a run of D = `date` reads day by day: the backbone's engagements end the day before the window, the window
    the day before D, and the evaluation days begin with D."""
    data, window, pretrain = config.data, config.data.window, config.backbone.pretrain
    requests_uri = storage.join(data_uri, data.requests_path)
    key, marker, columns = data.day_key, data.day_complete_marker, _request_columns(data)
    training = days_before(date, window.num_days, "data.window.num_days")
    evaluation = days_from(date, window.num_evaluation_days, "data.window.num_evaluation_days")
    allowance = "data.window.max_missing_days"
    logs = [
        Log("training", requests_uri, training, key, columns, marker, window.max_missing_days, allowance),
        Log("evaluation", requests_uri, evaluation, key, columns, marker),
    ]
    if pretrain is not None:
        uri = storage.join(data_uri, data.engagements.path)
        days = days_before(training[0], pretrain.num_days, "backbone.pretrain.num_days")
        allowance = "backbone.pretrain.max_missing_days"
        columns = _engagement_columns(data)
        logs.append(Log("engagements", uri, days, key, columns, marker, pretrain.max_missing_days, allowance))
    if data.truth_path is not None:
        columns = {data.columns.request_id: "data.columns.request_id"}
        logs.append(Log("truth", storage.join(data_uri, data.truth_path), evaluation, key, columns))
    return logs


def item_columns(items: Items) -> dict[str, str]:
    """The columns of the items' content, with the configuration's keys that name them."""
    columns = {items.item_id: "data.items.item_id"}
    if items.patches is not None:
        columns[items.patches.column] = "data.items.patches.column"
    if items.tokens is not None:
        columns[items.tokens.column] = "data.items.tokens.column"
    return columns


def _request_columns(data: Data) -> dict[str, str]:
    named = {column: f"data.columns.{key}" for key, column in data.columns.model_dump().items() if column is not None}
    context = {feature.column: f"data.context {feature.name}" for feature in data.context}
    return named | context | {head.column: f"data.heads {head.name}" for head in data.heads}


def _engagement_columns(data: Data) -> dict[str, str]:
    named = data.engagements.model_dump(include={"user_id", "item_id", "action"}, exclude_none=True)
    return {column: f"data.engagements.{key}" for key, column in named.items()}


def list_day(log: Log, day: datetime.date, names: frozenset[str]) -> DayFolder:
    """The files of a day.

    Args:
        log: The log.
        day: The day.
        names: The folders that the log has; a day that is not among them is not asked for.
    """
    uri = log.folder_uri(day)
    if uri.rpartition("/")[2] not in names:
        return DayFolder(log, day, absence="no folder")
    files, ignored = list_data_files(uri)
    if not files:
        return DayFolder(log, day, [], len(ignored), "no Parquet file")
    if log.marker is not None and log.marker not in ignored:
        return DayFolder(log, day, [], len(ignored), f"no {log.marker}")
    return DayFolder(log, day, files, len(ignored))
