from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.datasets.complete import MARK, DataSetError, is_complete, publish

SETTINGS = {"data_set": "demo", "seed": 0}


@pytest.fixture
def made(tmp_path) -> Path:
    folder = tmp_path / "made"
    for name in ("items.parquet", "requests/day=2026-03-01/part-0.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture(params=["local", "memory"])
def uri(request, tmp_path) -> str:
    return str(tmp_path / "data") if request.param == "local" else f"memory://{tmp_path.name}/data"


def test_a_published_data_set_is_complete(made, uri):
    assert not is_complete(uri, SETTINGS)
    publish(made, uri, SETTINGS)
    assert is_complete(uri, SETTINGS)
    assert storage.read_bytes(f"{uri}/items.parquet") == b"items.parquet"


def test_a_data_set_of_other_settings_is_an_error_that_names_both_values(made, uri):
    publish(made, uri, SETTINGS)
    with pytest.raises(DataSetError, match=r"another data set: seed is 0, not 1\. Name another folder"):
        is_complete(uri, SETTINGS | {"seed": 1})
    with pytest.raises(DataSetError, match="wheel is None, not 'x'"):
        is_complete(uri, SETTINGS | {"wheel": "x"})


def test_a_half_written_data_set_is_not_complete_and_is_replaced(made, uri):
    storage.write_bytes(f"{uri}/items.parquet", b"half")
    assert not is_complete(uri, SETTINGS)
    publish(made, uri, SETTINGS)
    assert is_complete(uri, SETTINGS)
    assert storage.read_bytes(f"{uri}/items.parquet") == b"items.parquet"


def test_the_mark_is_written_after_every_file(made, uri):
    day = f"{uri}/requests/day=2026-03-01"
    storage.write_bytes(day, b"a file where a folder should be")
    with pytest.raises((OSError, DataSetError)):
        publish(made, uri, SETTINGS)
    assert not storage.exists(f"{uri}/{MARK}")


def test_files_of_somebody_else_are_neither_replaced_nor_mixed(made, uri):
    storage.write_bytes(f"{uri}/items.parquet", b"mine")
    storage.write_bytes(f"{uri}/requests/day=2025-01-01/mine.parquet", b"mine")
    with pytest.raises(DataSetError, match=r"is not empty: it holds requests/day=2025-01-01/mine\.parquet, which"):
        publish(made, uri, SETTINGS)
    assert storage.read_bytes(f"{uri}/items.parquet") == b"mine"


def test_what_an_interrupted_write_left_aside_does_not_stand_in_the_way(made, uri):
    storage.write_bytes(f"{uri}/requests/.part-0.parquet.0a1b.tmp", b"half")
    publish(made, uri, SETTINGS)
    assert is_complete(uri, SETTINGS)


def test_a_complete_data_set_that_lost_a_file_is_an_error(made, uri):
    publish(made, uri, SETTINGS)
    filesystem, path = storage.open_filesystem(f"{uri}/items.parquet")
    filesystem.rm(path)
    with pytest.raises(DataSetError, match=r"items\.parquet is absent and had 13 bytes\. Remove the folder"):
        is_complete(uri, SETTINGS)
    storage.write_bytes(f"{uri}/items.parquet", b"cut")
    with pytest.raises(DataSetError, match=r"items\.parquet has 3 bytes and had 13 bytes"):
        is_complete(uri, SETTINGS)
