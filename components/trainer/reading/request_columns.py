"""The columns of the request log: which are read, what must hold of them, how their ids become rows."""

from typing import NoReturn

import numpy as np
import pyarrow as pa

from thaw.components.config.data import ContextFeature, Data
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.batches import MISSING_ID
from thaw.components.trainer.reading.blocks import Columns
from thaw.components.trainer.reading.columns import Column, ColumnSpec, DataError, describe
from thaw.components.trainer.reading.ids import Counts, check, map_ids


class RequestSchema:
    """Reads requests. Keys of the columns: request_id, user, history, candidates, labels, history_action,
    history_age_s, context/<name>, and from `map_ids` on user_id and item_id, the ids as the log has them."""

    action_column = None

    def __init__(self, data: Data, history_length: int) -> None:
        """Name the columns.

        Args:
            data: Section of the configuration.
            history_length: At most this many items of the history are taken.
        """
        names = data.columns
        self.data = data
        self.history_length = history_length if names.history is not None else 0
        self.specs = {
            "request_id": ColumnSpec(names.request_id, "integer"),
            "user": ColumnSpec(names.user_id, "integer"),
            "candidates": ColumnSpec(names.candidates, "integer", "either"),
        }
        self.aligned: list[str] = []
        """Of the keys, those with a value for each item of the history."""
        if self.history_length:
            for key in ("history", "history_action", "history_age_s"):
                if (column := getattr(names, key)) is not None:
                    self.specs[key] = ColumnSpec(column, "integer", "list")
            self.aligned = [key for key in ("history_action", "history_age_s") if key in self.specs]
        for head in data.heads:
            self.specs[f"label/{head.name}"] = ColumnSpec(head.column, "label", "either")
        for feature in data.context:
            key = f"context/{feature.name}"
            if feature.kind == "categorical":
                self.specs[key] = ColumnSpec(feature.column, "integer")
            else:
                self.specs[key] = ColumnSpec(feature.column, "number", "either" if feature.width == 1 else "list")

    def select(self, table: pa.Table, file: DataFile) -> pa.Table:
        """All rows."""
        return table

    def check(self, columns: Columns, file: DataFile) -> Columns:
        """The row group with its history cut and its labels side by side.

        Raises:
            DataError: with day, file, column and value.
        """
        request_ids = columns["request_id"]
        if request_ids.nulls is not None:
            self._refuse(file, "request_id", "holds null")
        checked = {key: columns[key] for key in ("request_id", "user", "candidates")}
        checked["labels"] = self._labels(columns, file)
        checked |= self._history(columns, file)
        for feature in self.data.context:
            checked[f"context/{feature.name}"] = self._context(feature, columns[f"context/{feature.name}"], file)
        tables = self.data.tables
        check(checked["user"], "user", tables["user"], "user", self.specs["user"].column, file)
        for key in ("history", "candidates"):
            if key in self.specs:
                check(checked[key], "item", tables["item"], key, self.specs[key].column, file)
        return checked

    def map_ids(self, columns: Columns, counts: Counts) -> Columns:
        """The same rows with rows of the tables in user, history and candidates."""
        mapped = dict(columns)
        user, tables = columns["user"], self.data.tables
        as_read = user.values if user.nulls is None else np.where(user.nulls, MISSING_ID, user.values)
        mapped["user_id"] = Column(as_read)
        aligned: dict[str, list[str]] = {"user": [], "history": self.aligned, "candidates": ["labels"]}
        if tables["item"].out_of_range in ("hash", "overflow"):
            mapped["item_id"] = Column(columns["candidates"].values, columns["candidates"].offsets)
            aligned["candidates"].append("item_id")
        for key, others in aligned.items():
            column = columns[key]
            rows, kept = map_ids(column, tables["user" if key == "user" else "item"], key, counts)
            mapped[key] = Column(rows, column.offsets)
            if kept is not None:
                for name in (key, *others):
                    mapped[name] = mapped[name].keep(kept)
        return mapped

    def _labels(self, columns: Columns, file: DataFile) -> Column:
        """[values, heads] int8."""
        candidates = columns["candidates"]
        labels = np.empty((len(candidates.values), len(self.data.heads)), np.int8)
        for place, head in enumerate(self.data.heads):
            column = columns[f"label/{head.name}"]
            if column.nulls is not None:
                self._refuse(file, f"label/{head.name}", "holds null, and a label is 0 or 1")
            self._check_lengths(columns, f"label/{head.name}", "candidates", file)
            labels[:, place] = column.values
        return Column(labels, candidates.offsets)

    def _history(self, columns: Columns, file: DataFile) -> Columns:
        num_rows = columns["request_id"].num_rows
        if not self.history_length:
            return {"history": Column(np.zeros(0, np.int64), np.zeros(num_rows + 1, np.int64))}
        for key in self.aligned:
            self._check_lengths(columns, key, "history", file)
            column = columns[key]
            if column.nulls is not None:
                self._refuse(file, key, "holds null")
            limit = self.data.num_history_actions if key == "history_action" else None
            self._check_range(column, limit, key, file)
        return {key: columns[key].head(self.history_length) for key in ("history", *self.aligned)}

    def _context(self, feature: ContextFeature, column: Column, file: DataFile) -> Column:
        key = f"context/{feature.name}"
        if column.nulls is not None:
            self._refuse(file, key, "holds null")
        if feature.kind == "categorical":
            self._check_range(column, feature.cardinality, key, file)
            return column
        wrong = ~np.isfinite(column.values)
        if wrong.any():
            self._refuse(file, key, f"holds {column.values[wrong][0]}")
        if column.offsets is not None and (column.lengths != feature.width).any():
            length = column.lengths[column.lengths != feature.width][0]
            self._refuse(file, key, f"holds a list of {length} numbers, and its width is {feature.width}")
        return Column(column.values.reshape(-1, feature.width))

    def _check_range(self, column: Column, limit: int | None, key: str, file: DataFile) -> None:
        if not len(column.values):
            return
        low, high = int(column.values.min()), int(column.values.max())
        if low < 0 or (limit is not None and high >= limit):
            allowed = f"0 to {limit - 1}" if limit is not None else "0 or more"
            self._refuse(file, key, f"holds {low if low < 0 else high}, and {allowed} is allowed")

    def _check_lengths(self, columns: Columns, key: str, other: str, file: DataFile) -> None:
        found, needed = columns[key], columns[other]
        if found.offsets is None and needed.offsets is None:
            return
        if found.offsets is not None and needed.offsets is not None and np.array_equal(found.offsets, needed.offsets):
            return
        wrong = np.flatnonzero(found.lengths != needed.lengths)
        if len(wrong):
            row = wrong[0]
            self._refuse(
                file,
                key,
                f"has {found.lengths[row]} values in request {columns['request_id'].values[row]}, "
                f"and {self.specs[other].column!r} has {needed.lengths[row]}",
            )

    def _refuse(self, file: DataFile, key: str, fault: str) -> NoReturn:
        raise DataError(f"{describe(file, self.specs[key].column)} {fault}")
