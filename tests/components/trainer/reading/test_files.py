from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from reading_log import request_table

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestLoader
from thaw.components.trainer.reading.parquet import ReadError

MakeConfig = Callable[..., RunConfig]
WriteLog = Callable[..., list[DataFile]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_is_gone_is_an_error_and_not_skipped(
    make_config: MakeConfig, write_log: WriteLog, num_workers: int
) -> None:
    files = write_log([10, 10, 10])
    Path(files[1].uri).unlink()
    worker = r"loader worker \d: " if num_workers else ""
    with pytest.raises(ReadError, match=f"^{worker}{files[1].uri}: in the manifest but not found$"):
        list(RequestLoader(make_config(training__num_workers=num_workers), files, 0, 1, 0))


@pytest.mark.parametrize("cut", [1, 500])
def test_a_file_that_was_cut_is_refused_with_both_sizes(make_config: MakeConfig, write_log: WriteLog, cut: int) -> None:
    files = write_log([10, 10])
    path = Path(files[1].uri)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ReadError, match=f"{path} has {files[1].size - cut} bytes, and {files[1].size} in the manifest"):
        list(RequestLoader(make_config(), files, 0, 1, 0))


def test_a_file_of_the_same_size_with_other_row_groups_is_refused(make_config: MakeConfig, write_log: WriteLog) -> None:
    (file,) = write_log([10])
    other = file.model_copy(update={"row_groups": (4, 6)})
    with pytest.raises(ReadError, match=r"has row groups of \(10,\) rows, and \(4, 6\) in the manifest"):
        list(RequestLoader(make_config(), [other], 0, 1, 0))


def test_a_file_with_damaged_pages_is_refused(make_config: MakeConfig, write_log: WriteLog) -> None:
    (file,) = write_log([500])
    path = Path(file.uri)
    content = bytearray(path.read_bytes())
    start = pq.read_metadata(path).row_group(0).column(0).dictionary_page_offset
    content[start : start + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(ReadError, match=f"{path}: cannot be read: "):
        list(RequestLoader(make_config(), [file], 0, 1, 0))


def test_more_files_than_may_be_open_at_once_are_read(make_config: MakeConfig, write_log: WriteLog) -> None:
    files = write_log([2] * 70)
    loader = RequestLoader(make_config(training__global_batch_size=20), files, 0, 1, 0)
    assert sum(batch.num_requests for batch in loader) == 140


def test_files_without_rows_are_passed_over(make_config: MakeConfig, write_log: WriteLog) -> None:
    files = write_log([0, 5, 0])
    assert request_table(0, 0).num_rows == files[0].num_rows == 0
    assert sum(batch.num_requests for batch in RequestLoader(make_config(), files, 0, 1, 0)) == 5
    assert list(RequestLoader(make_config(), files[:1], 0, 1, 0)) == []
