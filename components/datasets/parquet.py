"""Tables as the Parquet files of a data set."""

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUPS_A_FILE = 2


def list_column(lengths: np.ndarray, values: np.ndarray) -> pa.ListArray:
    """A column of lists: row r holds the next `lengths[r]` of the values."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def write_day(folder: Path, log: str, day: datetime.date, table: pa.Table) -> None:
    """Write one day of a log, as `<folder>/<log>/day=YYYY-MM-DD/part-0.parquet`."""
    write(folder / log / f"day={day.isoformat()}" / "part-0.parquet", table)


def write(path: Path, table: pa.Table) -> None:
    """Write one file; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=max(1, -(-table.num_rows // ROW_GROUPS_A_FILE)))
