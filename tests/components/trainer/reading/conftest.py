"""A small log on disk, with whatever types and sizes a test asks for."""

import datetime
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from thaw.components.config import RunConfig, load
from thaw.components.select_window.window import DataFile

FIRST_DAY = datetime.date(2026, 3, 1)


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """A configuration of two tables of 1000 rows and one head; keyword arguments are overrides, `__` for a dot."""

    def make(**overrides: Any) -> RunConfig:
        document = {
            "name": "test",
            "data": {
                "uri": str(tmp_path),
                "window": {"date": "2026-03-10", "num_days": 1},
                "user_table": {"num_rows": 1000},
                "item_table": {"num_rows": 1000},
                "heads": [{"name": "click", "column": "click", "engagement": True}],
            },
            "backbone": {"pretrain": {"num_days": 1, "global_batch_size": 4}},
            "training": {"global_batch_size": 4, "num_lanes": 6, "read_timeout_s": 5},
        }
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        return load(
            str(path), [f"{key.replace('__', '.')}={yaml.safe_dump(value)}" for key, value in overrides.items()]
        )

    return make


def request_table(first_id: int, num_rows: int) -> pa.Table:
    """Requests whose every value is a function of the request id, so that a test can tell what each must be."""
    ids = range(first_id, first_id + num_rows)
    return pa.table(
        {
            "request_id": pa.array(ids, pa.int64()),
            "user_id": pa.array([i % 1000 for i in ids], pa.int64()),
            "history": pa.array([expected_history(i) for i in ids], pa.list_(pa.int64())),
            "candidates": pa.array([expected_candidates(i) for i in ids], pa.list_(pa.int64())),
            "click": pa.array([expected_labels(i) for i in ids], pa.list_(pa.int8())),
        }
    )


def expected_history(request_id: int) -> list[int]:
    return [(request_id * 7 + k) % 1000 for k in range(request_id % 5)]


def expected_candidates(request_id: int) -> list[int]:
    return [(request_id * 3 + k) % 1000 for k in range(1 + request_id % 3)]


def expected_labels(request_id: int) -> list[int]:
    return [(request_id + k) % 2 for k in range(1 + request_id % 3)]


def pin(path: Path, day: datetime.date | None = None) -> DataFile:
    """The file as the window document has it."""
    metadata = pq.read_metadata(path)
    return DataFile(
        uri=str(path),
        day=day,
        size=path.stat().st_size,
        version=f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
        row_groups=tuple(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)),
    )


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., DataFile]:
    """Write a table as a day's file."""

    def write(table: pa.Table, name: str, day: int = 0, row_group_size: int | None = None) -> DataFile:
        path = tmp_path / f"day={FIRST_DAY + datetime.timedelta(days=day)}" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, row_group_size=row_group_size)
        return pin(path, FIRST_DAY + datetime.timedelta(days=day))

    return write


@pytest.fixture
def write_log(write_file: Callable[..., DataFile]) -> Callable[..., list[DataFile]]:
    """One day a file, of these numbers of rows; request ids count through from 0."""

    def write(sizes: Sequence[int], row_group_size: int | None = None) -> list[DataFile]:
        return [
            write_file(request_table(sum(sizes[:day]), size), f"{day}.parquet", day, row_group_size)
            for day, size in enumerate(sizes)
        ]

    return write
