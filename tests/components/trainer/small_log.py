"""A small log on disk: ragged histories and candidates, content, context; and its window document."""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from thaw.components import storage
from thaw.components.config import RunConfig, load
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import DataFile, Window

DATE = datetime.date(2026, 3, 10)
NUM_USERS, NUM_ITEMS, DIM, HISTORY = 12, 20, 8, 4
DATA = {
    "user_table": {"num_rows": NUM_USERS},
    "item_table": {"num_rows": NUM_ITEMS},
    "window": {"date": DATE.isoformat(), "num_days": 1},
    "num_history_actions": 3,
    "columns": {"history_action": "action", "history_age_s": "age_s"},
    "items": {"patches": {"num": 2, "width": 3}, "tokens": {"max_length": 3, "vocabulary_size": 7}},
    "engagements": {"actions": ["click"]},
    "context": [
        {"name": "segment", "column": "segment", "kind": "categorical", "cardinality": 4},
        {"name": "weather", "column": "weather", "kind": "numeric", "width": 2},
    ],
    "heads": [
        {"name": "click", "column": "click", "engagement": True, "weight": 3.0},
        {"name": "hide", "column": "hide", "better": "down"},
    ],
}


def make_config(folder: Path, *overrides: str, **data: Any) -> RunConfig:
    """A configuration of the log; keywords replace keys of `data`, and None takes one out."""
    document = {
        "name": "test",
        "data": {key: value for key, value in {**DATA, "uri": str(folder), **data}.items() if value is not None},
        "model": {"dim": DIM, "history_length": HISTORY, "hidden_sizes": [6]},
        "backbone": {"pretrain": {"num_days": 1, "num_epochs": 2, "global_batch_size": 6}},
        "recipe": {"table_optimizer": "sgd", "table_lr": 1.0, "dense_optimizer": "sgd", "dense_lr": 0.1},
        "training": {"global_batch_size": 5, "num_lanes": 6, "log_every_steps": 1, "row_ledger": True},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return load(str(path), overrides)


def write_window(folder: Path, request_rows: Sequence[int] = (13,), num_pairs: int = 20) -> Window:
    """Write the log and its window document, `window.json`.

    Args:
        folder: Where to.
        request_rows: Requests of each training file.
        num_pairs: Clicks of the engagement log; as many other rows are in it too.
    """
    draw = np.random.default_rng(0)
    first, training = 0, []
    for number, rows in enumerate(request_rows):
        training.append(_pin(folder / f"requests/day=2026-03-09/{number}.parquet", _requests(draw, first, rows)))
        first += rows
    evaluation = _pin(folder / "requests/day=2026-03-10/0.parquet", _requests(draw, 1000, 7))
    window = Window(
        date=DATE,
        training_days=(DATE - datetime.timedelta(1),),
        evaluation_days=(DATE,),
        engagement_days=(DATE - datetime.timedelta(2),),
        training=tuple(training),
        evaluation=(evaluation,),
        engagements=(_pin(folder / "engagements/day=2026-03-08/0.parquet", _engagements(draw, num_pairs)),),
        items=(_pin(folder / "items.parquet", _items(draw)),),
        fingerprint="sha256:0",
    )
    storage.write_json(str(folder / "window.json"), window.model_dump(mode="json"))
    return window


def job(folder: Path, config: RunConfig, kind: str, output: str, **fields: Any) -> JobSpec:
    """A job over the log whose outputs go to a folder of that name."""
    return JobSpec(
        kind=kind,
        run_id="run",
        stage=output,
        job=f"job-{output}",
        config=config.model_dump(mode="json"),
        window_uri=str(folder / "window.json"),
        output_uri=str(folder / output),
        **fields,
    )


def _requests(draw: np.random.Generator, first: int, rows: int) -> pa.Table:
    history = draw.integers(0, 7, rows)
    candidates = draw.integers(1, 5, rows)

    def lists(lengths: np.ndarray, high: int, kind: pa.DataType) -> pa.Array:
        offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, pa.array(draw.integers(0, high, lengths.sum()), kind))

    return pa.table(
        {
            "request_id": pa.array(range(first, first + rows), pa.int64()),
            "user_id": pa.array(draw.integers(0, NUM_USERS, rows), pa.int64()),
            "history": lists(history, NUM_ITEMS, pa.int64()),
            "action": lists(history, 3, pa.int8()),
            "age_s": lists(history, 10**6, pa.int64()),
            "candidates": lists(candidates, NUM_ITEMS, pa.int64()),
            "click": lists(candidates, 2, pa.int8()),
            "hide": lists(candidates, 2, pa.int8()),
            "segment": pa.array(draw.integers(0, 4, rows), pa.int8()),
            "weather": pa.array(list(draw.normal(0, 3, (rows, 2))), pa.list_(pa.float32())),
        }
    )


def _engagements(draw: np.random.Generator, num_pairs: int) -> pa.Table:
    return pa.table(
        {
            "user_id": pa.array(draw.integers(0, NUM_USERS - 2, 2 * num_pairs), pa.int64()),
            "item_id": pa.array(draw.integers(0, NUM_ITEMS - 3, 2 * num_pairs), pa.int64()),
            "action": pa.array(["click", "hide"] * num_pairs),
        }
    )


def _items(draw: np.random.Generator) -> pa.Table:
    """Content of all items but the last; every third has fewer tokens than may be, item 1 has none."""
    ids = range(NUM_ITEMS - 1)
    return pa.table(
        {
            "item_id": pa.array(ids, pa.int64()),
            "patches": pa.array(list(draw.normal(0, 1, (len(ids), 6))), pa.list_(pa.float32())),
            "tokens": pa.array(
                [draw.integers(0, 7, 0 if i == 1 else 3 - (i % 3 == 0)).tolist() for i in ids], pa.list_(pa.int32())
            ),
        }
    )


def _pin(path: Path, table: pa.Table) -> DataFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=5)
    footer = pq.read_metadata(path)
    groups = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
    return DataFile(uri=str(path), day=DATE, size=path.stat().st_size, version="sha256:0", row_groups=groups)
