"""A small log with users and items that differ, its window document, and predictions as the ranks write them."""

import datetime
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile, Window, fingerprint

FIRST_DAY = datetime.date(2026, 3, 1)
HEADS = ("click", "hide")


@dataclass(frozen=True)
class Log:
    """Requests of several days: R requests of C candidates, H heads."""

    days: np.ndarray  # [R]
    users: np.ndarray  # [R]
    items: np.ndarray  # [R, C]
    truths: np.ndarray  # [R, C, H]
    labels: np.ndarray  # [R, C, H]

    @property
    def request_ids(self) -> np.ndarray:
        return np.arange(len(self.days)) * 7 + 1000


def simulate(
    *, num_days: int = 6, num_requests: int = 150, num_candidates: int = 4, num_users: int = 40, num_items: int = 30,
    new_users: int = 0, spread: float = 1.5, seed: int = 0,
) -> Log:  # fmt: skip
    """`new_users` are seen on the last day alone; `spread` is how far ids differ, in logits."""
    rng = np.random.default_rng(seed)
    num_rows = num_days * num_requests
    days = np.repeat(np.arange(num_days), num_requests)
    users = rng.integers(num_users, size=num_rows)
    if new_users:
        last = np.flatnonzero(days == num_days - 1)[::2]
        users[last] = num_users + rng.integers(new_users, size=len(last))
    items = rng.integers(num_items, size=(num_rows, num_candidates))
    user_effect = rng.normal(scale=spread, size=(num_users + new_users, len(HEADS)))
    item_effect = rng.normal(scale=spread, size=(num_items, len(HEADS)))
    truth = 1 / (1 + np.exp(1 - user_effect[users][:, None] - item_effect[items]))
    return Log(days, users, items, truth, (rng.random(truth.shape) < truth).astype(np.int8))


def config_of(folder: Path, **changes: object) -> RunConfig:
    """The document of a run over the log in `folder`; its last day is evaluated."""
    data = {
        "uri": str(folder),
        "truth_path": "truth",
        "window": {"date": None, "num_days": 5},
        "user_table": {"num_rows": 1000},
        "item_table": {"num_rows": 1000},
        "heads": [
            {"name": "click", "column": "clicked", "engagement": True},
            {"name": "hide", "column": "hidden", "better": "down"},
        ],
    } | changes
    return RunConfig.model_validate(
        {
            "name": "test",
            "data": data,
            "backbone": {"pretrain": {"num_days": 1}},
            "training": {"global_batch_size": 8},
            "evaluation": {"num_calibration_bins": 5},
        },
        strict=False,
    )


def write_log(log: Log, folder: Path) -> Window:
    """Requests and truth as Parquet, a file a day, and the window document over them: all days but the last train."""
    files: dict[str, list[DataFile]] = {"requests": [], "truth": []}
    for number in range(int(log.days.max()) + 1):
        rows = log.days == number
        lists = {"candidates": log.items[rows]}
        lists |= {name: log.labels[rows, :, h] for h, name in enumerate(("clicked", "hidden"))}
        requests = {"request_id": log.request_ids[rows], "user_id": log.users[rows]}
        requests |= {name: values.tolist() for name, values in lists.items()}
        # In another order than the requests: a truth is found by its request.
        truth = {"request_id": log.request_ids[rows][::-1]}
        truth |= {f"p_{head}": log.truths[rows, :, h][::-1].tolist() for h, head in enumerate(HEADS)}
        for name, columns in (("requests", requests), ("truth", truth)):
            files[name].append(write_file(folder, name, number, pa.table(columns)))
    return window_of(folder, files)


def write_file(folder: Path, name: str, day_number: int, table: pa.Table) -> DataFile:
    """One day's file, two row groups."""
    day = FIRST_DAY + datetime.timedelta(days=day_number)
    path = folder / name / f"day={day}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=max(1, -(-table.num_rows // 2)))
    metadata = pq.read_metadata(path)
    return DataFile(
        uri=str(path),
        day=day,
        size=path.stat().st_size,
        version=f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
        row_groups=tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)),
    )


def window_of(folder: Path, files: dict[str, list[DataFile]]) -> Window:
    """The window document: the last day is evaluated."""
    *training, evaluation = files["requests"]
    assert evaluation.day is not None
    return Window(
        date=evaluation.day,
        training_days=tuple(file.day for file in training if file.day),
        evaluation_days=(evaluation.day,),
        training=tuple(training),
        evaluation=(evaluation,),
        truth=tuple(files["truth"]),
        fingerprint=fingerprint([*files["requests"], *files["truth"]], str(folder)),
    )


def write_predictions(
    log: Log, scores_RCH: np.ndarray, folder: Path, num_ranks: int = 2, seed: int | None = None
) -> None:
    """The scores of the last day under `evaluation/` and of the first under `train/`, requests dealt over ranks.

    With a seed they are dealt at random, in a random order.
    """
    for name, day in (("evaluation", log.days.max()), ("train", 0)):
        requests = np.flatnonzero(log.days == day)
        owners = np.arange(len(requests)) % num_ranks
        if seed is not None:
            rng = np.random.default_rng(seed)
            requests, owners = rng.permutation(requests), rng.integers(num_ranks, size=len(requests))
        for rank in range(num_ranks):
            write_part(log, scores_RCH, requests[owners == rank], folder / name / f"part-{rank}.parquet")


def write_part(log: Log, scores_RCH: np.ndarray, requests: np.ndarray, path: Path) -> None:
    """One rank's rows."""
    num_candidates = log.items.shape[1]
    columns = {
        "request_id": np.repeat(log.request_ids[requests], num_candidates),
        "user_id": np.repeat(log.users[requests], num_candidates),
        "item_id": log.items[requests].ravel(),
    }
    for h, head in enumerate(HEADS):
        columns[f"{head}_label"] = log.labels[requests, :, h].ravel()
        columns[f"{head}_score"] = scores_RCH[requests, :, h].ravel().astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@dataclass(frozen=True)
class Scored:
    """A log with its window document and predictions, on disk."""

    log: Log
    config: RunConfig
    window: Window
    predictions_uri: str


def scored_log(folder: Path) -> Scored:
    """A model that knows the truth, with some noise."""
    log = simulate(new_users=10)
    window = write_log(log, folder / "data")
    noise = np.random.default_rng(5).normal(scale=0.3, size=log.truths.shape)
    logits = np.log(log.truths / (1 - log.truths)) + noise
    write_predictions(log, 1 / (1 + np.exp(-logits)), folder / "predictions")
    return Scored(log, config_of(folder / "data"), window, str(folder / "predictions"))
