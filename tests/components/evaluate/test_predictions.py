import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scored_log import Scored, write_part, write_predictions
from test_metrics import LABELS, SCORES

from thaw.components.evaluate.metrics import auc
from thaw.components.evaluate.predictions import check_complete, read_predictions

HEADS = ("click", "hide")


def write_rows(path: Path, columns: dict[str, object], num_rows: int) -> None:
    defaults = {
        "request_id": pa.array(range(num_rows), pa.int64()),
        "user_id": pa.array(range(num_rows), pa.int64()),
        "item_id": pa.array(range(num_rows), pa.int64()),
        "click_label": pa.array([0] * num_rows, pa.int8()),
        "click_score": pa.array([0.5] * num_rows, pa.float32()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(defaults | columns), path)


@pytest.mark.parametrize("parts", [[(0, 4), (4, 8)], [(0, 8), (8, 8)], [(0, 8)]], ids=["2 ranks", "1 idle", "1 rank"])
@pytest.mark.parametrize(("scores", "expected"), [(SCORES, 0.75), (np.full(8, 0.5), 0.5)], ids=["distinct", "equal"])
def test_auc_is_that_of_all_rows_in_every_layout(
    tmp_path: Path, parts: list[tuple[int, int]], scores: np.ndarray, expected: float
) -> None:
    for rank, (start, stop) in enumerate(parts):
        columns = {
            "request_id": pa.array(range(start, stop), pa.int64()),
            "click_label": pa.array(LABELS[start:stop], pa.int8()),
            "click_score": pa.array(scores[start:stop], pa.float32()),
        }
        write_rows(tmp_path / f"part-{rank}.parquet", columns, stop - start)
    predictions = read_predictions(str(tmp_path), ["click"])
    assert auc(predictions.rows.labels[:, 0], predictions.scores[:, 0]) == expected


def test_every_layout_gives_the_same_rows_in_the_same_order(scored: Scored, tmp_path: Path) -> None:
    reference = read_predictions(f"{scored.predictions_uri}/evaluation", HEADS)
    for num_ranks, seed in ((1, None), (3, 0), (200, 1)):
        folder = tmp_path / f"ranks-{num_ranks}"
        write_predictions(scored.log, scored.log.truths, folder, num_ranks, seed)
        other = read_predictions(f"{folder}/evaluation", HEADS)
        np.testing.assert_array_equal(other.requests, reference.requests)
        np.testing.assert_array_equal(other.rows.items.values, reference.rows.items.values)
        np.testing.assert_array_equal(other.rows.labels, reference.rows.labels)


def test_ids_above_2_to_the_53_stay_apart_beside_a_null(tmp_path: Path) -> None:
    ids = [9007199254740993, 9007199254740992, None, 9223372036854775807]
    write_rows(tmp_path / "part-0.parquet", {"user_id": pa.array(ids, pa.int64())}, 4)
    users = read_predictions(str(tmp_path), ["click"]).rows.users
    assert users.present.tolist() == [True, True, False, True]
    assert users.values[users.present].tolist() == [value for value in ids if value is not None]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"click_score": pa.array([0.1, np.nan], pa.float32())}, "head click: 1 of 2 rows are wrong.*nan in request 1"),
        ({"click_score": pa.array([0.1, 1.5], pa.float32())}, "1.5 in request 1; scores are probabilities"),
        ({"click_label": pa.array([2, 0], pa.int8())}, "2 in request 0; labels are 0 or 1"),
        ({"click_label": pa.array([None, 0], pa.int8())}, "column click_label: 1 nulls"),
        ({"user_id": pa.array([1.0, 2.0])}, "column user_id is double; ids are integers"),
    ],
)
def test_a_value_that_is_none_is_named_with_its_place(tmp_path: Path, columns: dict, message: str) -> None:
    write_rows(tmp_path / "part-0.parquet", columns, 2)
    with pytest.raises(ValueError, match=message):
        read_predictions(str(tmp_path), ["click"])


def test_no_part_and_a_head_without_columns_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no predictions"):
        read_predictions(str(tmp_path / "nothing"), ["click"])
    write_rows(tmp_path / "part-0.parquet", {}, 1)
    with pytest.raises(ValueError, match="no column hide_label, hide_score; it has request_id"):
        read_predictions(str(tmp_path), ["click", "hide"])


def test_a_request_that_was_lost_or_scored_twice_is_named(scored: Scored, tmp_path: Path) -> None:
    requests = np.flatnonzero(scored.log.days == scored.log.days.max())
    for name, parts in {"lost": [requests[1:]], "twice": [requests, requests[:1]]}.items():
        for rank, part in enumerate(parts):
            write_part(scored.log, scored.log.truths, part, tmp_path / name / f"part-{rank}.parquet")
    first = scored.log.request_ids[requests[0]]
    with pytest.raises(ValueError, match=f"596 candidates .* 600; 1 requests differ.* request {first}: 0 scored, 4"):
        check_complete(read_predictions(str(tmp_path / "lost"), HEADS), scored.config, scored.window)
    with pytest.raises(ValueError, match=f"604 candidates .* 600; 1 requests differ.* request {first}: 8 scored, 4"):
        check_complete(read_predictions(str(tmp_path / "twice"), HEADS), scored.config, scored.window)


def test_a_policy_that_leaves_ids_out_may_leave_candidates_unscored(scored: Scored, tmp_path: Path) -> None:
    requests = np.flatnonzero(scored.log.days == scored.log.days.max())
    write_part(scored.log, scored.log.truths, requests[1:], tmp_path / "lacking" / "part-0.parquet")
    predictions = read_predictions(str(tmp_path / "lacking"), HEADS)
    table = scored.config.data.item_table.model_copy(update={"out_of_range": "drop"})
    data = scored.config.data.model_copy(update={"item_table": table})
    check_complete(predictions, scored.config.model_copy(update={"data": data}), scored.window)
    twice = dataclasses.replace(predictions, num_candidates=predictions.num_candidates + 1)
    with pytest.raises(ValueError, match="149 requests differ"):
        check_complete(twice, scored.config.model_copy(update={"data": data}), scored.window)


def test_a_request_id_that_stands_twice_in_the_log_is_named(scored: Scored) -> None:
    predictions = read_predictions(
        f"{scored.predictions_uri}/evaluation", [head.name for head in scored.config.data.heads]
    )
    check_complete(predictions, scored.config, scored.window)
    twice = scored.window.model_copy(update={"evaluation": scored.window.evaluation * 2})
    with pytest.raises(ValueError, match="stand more than once in the evaluation days"):
        check_complete(predictions, scored.config, twice)
