"""Writes day folders of Parquet files around one D."""

import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from thaw.components import storage

DATE = datetime.date(2026, 3, 2)


def parquet(num_rows: int, row_group_size: int | None = None, num_columns: int = 1) -> bytes:
    columns = {f"column_{k}": pa.array(range(num_rows), pa.int64()) for k in range(num_columns)}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=row_group_size)
    return bytes(sink.getvalue())


def day_uri(log_uri: str, offset: int, key: str = "day") -> str:
    """The folder of the day D + offset."""
    return storage.join(log_uri, f"{key}={DATE + datetime.timedelta(days=offset)}")


def write_days(log_uri: str, offsets: range, num_rows: int = 100) -> None:
    for offset in offsets:
        storage.write_bytes(storage.join(day_uri(log_uri, offset), "part-0.parquet"), parquet(num_rows))
