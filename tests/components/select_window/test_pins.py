from collections.abc import Callable

import pytest
from day_folders import COLUMNS, DATE, day_uri, parquet

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.select_window.pins import ChangedFileError, check_pins
from thaw.components.select_window.selection import select


def test_files_that_stay_as_they_were_pass(configure: Callable[..., RunConfig], requests_uri: str) -> None:
    check_pins(select(configure(), DATE).training)


def test_a_file_of_equal_size_and_other_content_is_named(
    configure: Callable[..., RunConfig], requests_uri: str
) -> None:
    window = select(configure(), DATE)
    uri = storage.join(day_uri(requests_uri, -3), "part-0.parquet")
    before = storage.read_bytes(uri)
    after = parquet(100, columns=(*COLUMNS[:4], "Segment", *COLUMNS[5:]))
    assert len(after) == len(before) and after != before
    storage.write_bytes(uri, after)
    with pytest.raises(ChangedFileError, match="it changed after its selection") as fault:
        check_pins(window.training)
    assert uri in str(fault.value) and len(str(fault.value).splitlines()) == 1


def test_a_file_that_is_gone_is_named(configure: Callable[..., RunConfig], requests_uri: str) -> None:
    window = select(configure(), DATE)
    uri = storage.join(day_uri(requests_uri, -3), "part-0.parquet")
    filesystem, path = storage.open_filesystem(uri)
    filesystem.rm(path)
    with pytest.raises(ChangedFileError, match="in the manifest but not found") as fault:
        check_pins(window.training)
    assert uri in str(fault.value)
