"""A small log on disk, with whatever types and sizes a test asks for."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading_log import FIRST_DAY, pin, request_table, write_config

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """Tables of 1000 rows, heads click and hide, batches of 4, 6 lanes; overrides by name, `__` for a dot."""
    return lambda **overrides: write_config(tmp_path, overrides)


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., DataFile]:
    """Writes a table as a file of a day."""

    def write(table: pa.Table, name: str = "0.parquet", day: int = 0, **options: Any) -> DataFile:
        path = tmp_path / f"day={FIRST_DAY + datetime.timedelta(days=day)}" / name
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, **options)
        return pin(path, day)

    return write


@pytest.fixture
def write_log(write_file: Callable[..., DataFile]) -> Callable[..., list[DataFile]]:
    """Writes one file a day, of these numbers of rows; request ids count through from 0."""

    def write(sizes: Sequence[int], **options: Any) -> list[DataFile]:
        return [write_file(request_table(sum(sizes[:day]), size), day=day, **options) for day, size in enumerate(sizes)]

    return write
