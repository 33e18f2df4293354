"""What the ranks scored, put together again: one order of the rows, however they were split over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.evaluate.rows import Ids, Rows, ids, numbers, read_log, read_row_groups
from thaw.components.select_window.window import Window


@dataclass(frozen=True)
class Predictions:
    """All rows of a scoring, by request id; the candidates of a request in the order of the log."""

    request_ids: NDArray[np.int64]
    """[R] Ascending."""
    num_candidates: NDArray[np.int64]
    """[R]"""
    requests: NDArray[np.int64]
    """[N] Index into `request_ids` of each row, ascending."""
    rows: Rows
    scores: NDArray[np.float32]
    """[N, H]"""


def read_predictions(uri: str, heads: Sequence[str]) -> Predictions:
    """Every part below a folder. Parts without a row are well; a folder without a part is not.

    Args:
        uri: Folder of `part-<rank>.parquet` files. A request is whole in one of them.
        heads: Names; `<head>_label` and `<head>_score` are their columns.

    Raises:
        ValueError: no part, a column absent, a label that is neither 0 nor 1, a score that is no probability.
    """
    columns = ["request_id", "user_id", "item_id"]
    columns += [f"{head}_{what}" for what in ("label", "score") for head in heads]
    tables = []
    parts = [file.path for file in storage.list_files(uri) if file.path.endswith(".parquet")]
    for part in parts:
        filesystem, path = storage.open_filesystem(part)
        with filesystem.open(path, "rb") as opened:
            tables += [table for table in read_row_groups(opened, columns, part) if table.num_rows]
    if not parts:
        raise ValueError(f"{uri}: no predictions, not even an empty part")
    table = pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.int8()) for name in columns})

    request_ids_N = numbers(table["request_id"], pa.int64(), "request_id", uri)
    order = np.argsort(request_ids_N, kind="stable")
    request_ids_R, requests_N, num_candidates_R = np.unique(
        request_ids_N[order], return_inverse=True, return_counts=True
    )

    def ordered(name: str) -> Ids:
        column = ids(table[name], name, uri)
        return Ids(column.values[order], column.present[order])

    def stacked(what: str, dtype: pa.DataType) -> NDArray:
        names = [f"{head}_{what}" for head in heads]
        return np.stack([numbers(table[name], dtype, name, uri)[order] for name in names], axis=1)

    predictions = Predictions(
        request_ids=request_ids_R,
        num_candidates=num_candidates_R,
        requests=requests_N,
        rows=Rows(ordered("user_id"), ordered("item_id"), stacked("label", pa.int8())),
        scores=stacked("score", pa.float32()),
    )
    _check_values(predictions, uri, heads)
    return predictions


def check_complete(predictions: Predictions, config: RunConfig, window: Window) -> None:
    """Hold the predictions against the log of the evaluation days: each candidate scored, and scored once.

    Where the item table leaves out ids that it doesn't know, their candidates have no score; nothing else may lack one.

    Raises:
        ValueError: two requests of the log have one id; a request or a candidate was lost or scored twice.
    """
    none = np.empty(0, np.int64)
    logged = [
        (group.request_ids, group.num_candidates) for file in window.evaluation for group in read_log(config.data, file)
    ]
    logged_ids_R = np.concatenate([none, *(request_ids for request_ids, _ in logged)])
    logged_R = np.concatenate([none, *(num_candidates for _, num_candidates in logged)])
    ids_once, times = np.unique(logged_ids_R, return_counts=True)
    if (times > 1).any():
        raise ValueError(
            f"column {config.data.columns.request_id!r}: {int((times > 1).sum())} request ids stand more than once in "
            f"the evaluation days, the first is {ids_once[times > 1][0]}; HIT@k and the truth need one id a request"
        )
    distinct, inverse = np.unique(np.concatenate([logged_ids_R, predictions.request_ids]), return_inverse=True)
    num_logged = len(logged_ids_R)

    def per_request(places: NDArray, counts: NDArray) -> NDArray[np.int64]:
        return np.bincount(places, counts, minlength=len(distinct)).astype(np.int64)

    expected = per_request(inverse[:num_logged], logged_R)
    scored = per_request(inverse[num_logged:], predictions.num_candidates)
    may_lack = config.data.item_table.out_of_range != "error"
    wrong = (scored > expected) if may_lack else (scored != expected)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"predictions: {int(scored.sum())} candidates are scored, and the evaluation days hold "
            f"{int(expected.sum())}; {int(wrong.sum())} requests differ, the first is request {distinct[first]}: "
            f"{scored[first]} scored, {expected[first]} logged"
        )


def _check_values(predictions: Predictions, uri: str, heads: Sequence[str]) -> None:
    labels_NH, scores_NH = predictions.rows.labels, predictions.scores
    for values, wrong, rule in (
        (labels_NH, (labels_NH != 0) & (labels_NH != 1), "labels are 0 or 1"),
        (scores_NH, ~((scores_NH >= 0) & (scores_NH <= 1)), "scores are probabilities"),
    ):
        if wrong.any():
            row, head = (int(index) for index in np.argwhere(wrong)[0])
            request = predictions.request_ids[predictions.requests[row]]
            raise ValueError(
                f"{uri}: head {heads[head]}: {int(wrong[:, head].sum())} of {len(values)} rows are wrong, the first is "
                f"{values[row, head]} in request {request}; {rule}"
            )
