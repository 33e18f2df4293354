"""Writes day folders of Parquet files around one D."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from thaw.components import storage

DATE = datetime.date(2026, 3, 2)


COLUMNS = (
    *("request_id", "user_id", "candidates", "history", "segment", "click", "save", "hide"),
    *("item_id", "action", "patches", "tokens"),
)
"""Those of every log of the preset; selection looks at names alone."""


def parquet(
    num_rows: int, row_group_size: int | None = None, num_columns: int = 0, columns: tuple[str, ...] = COLUMNS
) -> bytes:
    names = (*columns, *(f"column_{k}" for k in range(num_columns)))
    columns = {name: pa.array(range(num_rows), pa.int64()) for name in names}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=row_group_size)
    return bytes(sink.getvalue())


def day_uri(log_uri: str, offset: int, key: str = "day") -> str:
    """The folder of the day D + offset."""
    return storage.join(log_uri, f"{key}={DATE + datetime.timedelta(days=offset)}")


def write_days(log_uri: str, offsets: range, num_rows: int = 100) -> None:
    for offset in offsets:
        storage.write_bytes(storage.join(day_uri(log_uri, offset), "part-0.parquet"), parquet(num_rows))
