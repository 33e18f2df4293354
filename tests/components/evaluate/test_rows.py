from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scored_log import Scored, config_of, write_file

from thaw.components.evaluate.rows import read_log, read_tables
from thaw.components.select_window.window import DataFile


def logged(folder: Path, **columns: pa.Array) -> DataFile:
    defaults = {
        "request_id": pa.array([1, 2]),
        "user_id": pa.array([7, 8]),
        "candidates": pa.array([[10, 11], [12]]),
        "clicked": pa.array([[1, 0], [0]]),
        "hidden": pa.array([[0, 0], [1]]),
    }
    return write_file(folder, "requests", 0, pa.table(defaults | columns))


def test_a_row_is_one_candidate_with_its_request_user_and_labels(tmp_path: Path) -> None:
    groups = list(read_log(config_of(tmp_path).data, logged(tmp_path)))
    assert [group.request_ids.tolist() for group in groups] == [[1], [2]]
    assert [group.num_candidates.tolist() for group in groups] == [[2], [1]]
    assert [group.rows.users.values.tolist() for group in groups] == [[7, 7], [8]]
    assert [group.rows.items.values.tolist() for group in groups] == [[10, 11], [12]]
    assert [group.rows.labels.tolist() for group in groups] == [[[1, 0], [0, 0]], [[0, 1]]]


@pytest.mark.parametrize(
    "columns",
    [
        {"user_id": pa.array([7, 8], pa.int32())},
        {"candidates": pa.array([[10, 11], [12]], pa.large_list(pa.int64()))},
        {"clicked": pa.array([[True, False], [False]])},
    ],
    ids=["int32", "large_list", "bool"],
)
def test_other_types_of_the_same_numbers_give_the_same_rows(tmp_path: Path, columns: dict) -> None:
    data = config_of(tmp_path).data
    groups = zip(read_log(data, logged(tmp_path / "a")), read_log(data, logged(tmp_path / "b", **columns)))
    for reference, other in groups:
        np.testing.assert_array_equal(other.rows.users.values, reference.rows.users.values)
        np.testing.assert_array_equal(other.rows.items.values, reference.rows.items.values)
        np.testing.assert_array_equal(other.rows.labels, reference.rows.labels)


def test_one_candidate_a_request_needs_no_list(tmp_path: Path) -> None:
    numbers = {"candidates": pa.array([10, 12]), "clicked": pa.array([1, 0]), "hidden": pa.array([0, 1])}
    groups = list(read_log(config_of(tmp_path).data, logged(tmp_path, **numbers)))
    assert [group.rows.items.values.tolist() for group in groups] == [[10], [12]]
    assert [group.rows.labels.tolist() for group in groups] == [[[1, 0]], [[0, 1]]]


def test_requests_without_candidates_have_no_rows(tmp_path: Path) -> None:
    nothing = pa.array([None, None], pa.null())
    groups = list(
        read_log(config_of(tmp_path).data, logged(tmp_path, candidates=nothing, clicked=nothing, hidden=nothing))
    )
    assert [group.num_candidates.tolist() for group in groups] == [[0], [0]]
    assert [group.rows.labels.shape for group in groups] == [(0, 2), (0, 2)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"clicked": pa.array([[1], [0]])}, "lists of clicked are not as long as those of candidates"),
        ({"user_id": pa.array([7.0, 8.0])}, "day=2026-03-01/part-0.parquet: column user_id is double"),
        ({"user_id": pa.array([2**63 + 5, 1], pa.uint64())}, "column user_id: .*9223372036854775813"),
        ({"clicked": pa.array([[1, None], [0]])}, "column clicked: 1 nulls"),
    ],
)
def test_columns_that_do_not_fit_are_named_with_their_file(tmp_path: Path, columns: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_log(config_of(tmp_path).data, logged(tmp_path, **columns)))


def test_a_file_that_is_gone_or_changed_since_the_selection_is_an_error(scored: Scored) -> None:
    file = scored.window.training[0]
    path = Path(file.uri)
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(ValueError, match=f"{path}: {file.size + 1} bytes, and {file.size} when the window"):
        next(read_tables(file, ["request_id"]))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path}: in the manifest but not found"):
        next(read_tables(file, ["request_id"]))
