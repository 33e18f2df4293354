"""How often each id stands in the log."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading.blocks import Columns, read_group
from thaw.components.trainer.reading.columns import ColumnSpec
from thaw.components.trainer.reading.ids import Counts, check, map_ids
from thaw.components.trainer.reading.pairs import PairSchema
from thaw.components.trainer.reading.parquet import RowGroups


def count_ids(
    config: RunConfig,
    files: Sequence[DataFile],
    column: str,
    table: str,
    rank: int,
    world_size: int,
    *,
    engagements: bool = False,
) -> torch.Tensor:
    """How often each row of a table stands in a column: [num_rows] int64, this rank's share of the row groups.

    The sum over ranks is the count over all files; the caller all-reduces.

    Args:
        config: The run's document.
        files: The files of the manifest.
        column: An id column of these files, plain or a list.
        table: `user` or `item`; its policy maps the ids.
        rank: This rank.
        world_size: All ranks.
        engagements: The files are the engagement log, and only rows whose action counts are taken.
    """
    rule = config.data.tables[table]
    schema = _OneColumn(config, column, table, engagements)
    row_groups = RowGroups(files, config.training.read_timeout_s)
    total = np.zeros(rule.num_rows, np.int64)
    for index in range(rank, len(row_groups), world_size):
        ids = read_group(schema, row_groups, index)["ids"]
        rows, kept = map_ids(ids, rule, column, Counter())
        total += np.bincount(rows if kept is None else rows[kept], minlength=rule.num_rows)
    return torch.from_numpy(total)


class _OneColumn:
    """Reads one id column."""

    def __init__(self, config: RunConfig, column: str, table: str, engagements: bool) -> None:
        self._table_name, self._table = table, config.data.tables[table]
        self._pairs = PairSchema(config.data) if engagements else None
        self.action_column = self._pairs.action_column if self._pairs else None
        self.specs = {"ids": ColumnSpec(column, "integer", "either")}

    def select(self, table: pa.Table, file: DataFile) -> pa.Table:
        return self._pairs.select(table, file) if self._pairs else table

    def check(self, columns: Columns, file: DataFile) -> Columns:
        name = self.specs["ids"].column
        check(columns["ids"], self._table_name, self._table, name, name, file)
        return columns

    def map_ids(self, columns: Columns, counts: Counts) -> Columns:
        return columns
