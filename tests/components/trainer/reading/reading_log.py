"""Requests whose every value is a function of the request id, so that a test can tell what each must be."""

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from thaw.components.config import RunConfig, load
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestBatch, RequestLoader

FIRST_DAY = datetime.date(2026, 3, 1)


def history_of(request_id: int) -> list[int]:
    return [(request_id * 7 + k) % 1000 for k in range(request_id % 5)]


def candidates_of(request_id: int) -> list[int]:
    return [(request_id * 3 + k) % 1000 for k in range(1 + request_id % 3)]


def clicks_of(request_id: int) -> list[int]:
    return [(request_id + k) % 2 for k in range(1 + request_id % 3)]


def hides_of(request_id: int) -> list[int]:
    return [(request_id + k) % 3 // 2 for k in range(1 + request_id % 3)]


def request_table(first_id: int, num_rows: int) -> pa.Table:
    ids = range(first_id, first_id + num_rows)
    return pa.table(
        {
            "request_id": pa.array(ids, pa.int64()),
            "user_id": pa.array([i % 1000 for i in ids], pa.int64()),
            "history": pa.array([history_of(i) for i in ids], pa.list_(pa.int64())),
            "candidates": pa.array([candidates_of(i) for i in ids], pa.list_(pa.int64())),
            "click": pa.array([clicks_of(i) for i in ids], pa.list_(pa.int8())),
            "hide": pa.array([hides_of(i) for i in ids], pa.list_(pa.int8())),
        }
    )


def replaced(table: pa.Table, **columns: pa.Array) -> pa.Table:
    """The table with other columns in place of those of the same name, or behind them."""
    for name, column in columns.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return table


def write_config(folder: Path, overrides: dict[str, Any]) -> RunConfig:
    document = {
        "name": "test",
        "data": {
            "uri": str(folder),
            "window": {"date": "2026-03-10", "num_days": 1},
            "user_table": {"num_rows": 1000},
            "item_table": {"num_rows": 1000},
            "heads": [
                {"name": "click", "column": "click", "engagement": True},
                {"name": "hide", "column": "hide", "better": "down"},
            ],
        },
        "backbone": {"pretrain": {"num_days": 1, "global_batch_size": 4}},
        "training": {"global_batch_size": 4, "num_nodes": 1, "num_lanes": 6, "read_timeout_s": 20},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(str(path), [f"{key.replace('__', '.')}={yaml.safe_dump(value)}" for key, value in overrides.items()])


def pin(path: Path, day: int | None = None, uri: str | None = None) -> DataFile:
    """A file as the window document has it."""
    metadata = pq.read_metadata(path)
    return DataFile(
        uri=uri or str(path),
        day=None if day is None else FIRST_DAY + datetime.timedelta(days=day),
        size=path.stat().st_size,
        version="sha256:0",
        row_groups=tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
    )


def request_ids(batches: Iterable[RequestBatch]) -> list[list[int]]:
    """Of each batch; none of the padding request."""
    return [batch.request_ids[: batch.num_requests].tolist() for batch in batches]


def global_batches(config: RunConfig, files: Sequence[DataFile], world_size: int, epoch: int = 0) -> list[list[int]]:
    """Request ids of every global batch: what the ranks read, one rank after the other."""
    ranks = [request_ids(RequestLoader(config, files, rank, world_size, epoch)) for rank in range(world_size)]
    return [[request_id for share in step for request_id in share] for step in zip(*ranks, strict=True)]
