"""The demo data set: the log of a simulated feed, with the true probabilities kept apart."""

import datetime
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from thaw.components.datasets.complete import DataSetError, is_complete, publish
from thaw.components.datasets.feed import ACTIONS, BEFORE, NUM_CANDIDATES, Feed, FeedDay, FeedItems, FeedSettings
from thaw.components.datasets.parquet import list_column, write, write_day

Size = Literal["S", "M", "V3"]

EVALUATION_DATE = datetime.date(2026, 3, 2)
"""The one day after the window."""
FORMAT = 1
"""Counts the changes of what a seed gives."""

SMALL: dict[str, Any] = {
    "num_users": 2500,
    "num_items": 5000,
    "history_day_requests": 2000,
    "window_day_requests": 600,
    "evaluation_day_requests": 2000,
}
MEDIUM: dict[str, Any] = {
    "num_users": 6000,
    "num_items": 12000,
    "history_day_requests": 5000,
    "window_day_requests": 1500,
    "evaluation_day_requests": 3000,
}
SIZES: dict[str, dict[str, Any]] = {
    "S": SMALL | {"num_history_days": 45, "quality_std": 0.25, "user_drift": 0.05},
    "M": MEDIUM | {"num_history_days": 45, "quality_std": 0.25, "user_drift": 0.05},
    "V3": MEDIUM | {"num_history_days": 60, "quality_std": 0.15, "user_drift": 0.03},
}
"""V3 is M with more days to pretrain on, and with users and items that the backbone tells more about."""


def generate_demo(size: Size, num_window_days: Literal[10, 20], seed: int, uri: str) -> None:
    """Write the demo data set below `uri`; one that is whole and of the same settings stays as it is.

        requests/day=*/      the window's days and the evaluation day
        engagements/day=*/   every day: one row a clicked or saved item, with the stronger of the two actions
        items.parquet        content of the items
        truth/day=*/         the true probabilities of each request's candidates

    One seed gives one content, bit for bit. Size V3 takes some seconds.

    Args:
        size: Key of `SIZES`.
        num_window_days: Days of the window; it ends the day before `EVALUATION_DATE`.
        seed: Of all that is drawn.
        uri: Folder of the data set, any fsspec URI.

    Raises:
        DataSetError: no such size or number of days, or something else lies at `uri`.
        StorageError: the store refuses.
    """
    if size not in SIZES:
        raise DataSetError(f"demo: no size {size!r}, only {', '.join(SIZES)}")
    if num_window_days not in (10, 20):
        raise DataSetError(f"demo: a window of 10 or 20 days, not {num_window_days!r}")
    feed_settings = FeedSettings(seed=seed, num_window_days=num_window_days, **SIZES[size])
    settings = {"data_set": "demo", "format": FORMAT, "size": size, **asdict(feed_settings)}
    if is_complete(uri, settings):
        return
    with tempfile.TemporaryDirectory(prefix="thaw-demo-") as name:
        _write(Feed(feed_settings), num_window_days, Path(name))
        publish(Path(name), uri, settings)


def _write(feed: Feed, num_window_days: int, folder: Path) -> None:
    first_day = EVALUATION_DATE - datetime.timedelta(days=num_window_days)
    write(folder / "items.parquet", _items(feed.items, first_day))
    next_request_id = 0
    for shown in feed.days():
        day = first_day + datetime.timedelta(days=shown.day)
        ts = _timestamps(day, len(shown.user))
        write_day(folder, "engagements", day, _engagements(shown, ts))
        if shown.day >= 0:
            request_id = np.arange(next_request_id, next_request_id + len(ts))
            next_request_id += len(ts)
            write_day(folder, "requests", day, _requests(shown, request_id, ts))
            write_day(folder, "truth", day, _truth(shown, request_id))


def _timestamps(day: datetime.date, num_requests: int) -> np.ndarray:
    """Seconds since 1970, evenly over the UTC day."""
    midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    return int(midnight.timestamp()) + np.arange(num_requests) * 86400 // num_requests


def _items(items: FeedItems, first_day: datetime.date) -> pa.Table:
    num_items = len(items.launch_day)
    launch_day = [
        None if day == BEFORE else first_day + datetime.timedelta(days=day) for day in items.launch_day.tolist()
    ]
    patches_IP, tokens_IT = items.patches, items.tokens.astype(np.int32)
    return pa.table(
        {
            "item_id": pa.array(np.arange(num_items)),
            "patches": list_column(np.full(num_items, patches_IP.shape[1]), patches_IP.ravel()),
            "tokens": list_column(np.full(num_items, tokens_IT.shape[1]), tokens_IT.ravel()),
            "launch_day": pa.array(launch_day, pa.date32()),
        }
    )


def _requests(shown: FeedDay, request_id: np.ndarray, ts: np.ndarray) -> pa.Table:
    known_RH = shown.history >= 0
    columns = {
        "request_id": pa.array(request_id),
        "ts": pa.array(ts),
        "user_id": pa.array(shown.user),
        "segment": pa.array(shown.segment.astype(np.int8)),
        "history": list_column(known_RH.sum(axis=1), shown.history[known_RH]),
        "candidates": _for_candidates(shown.candidates),
    }
    for number, action in enumerate(ACTIONS):
        columns[action] = _for_candidates(shown.action[..., number].astype(np.int8))
    return pa.table(columns)


def _truth(shown: FeedDay, request_id: np.ndarray) -> pa.Table:
    columns = {"request_id": pa.array(request_id)}
    for number, action in enumerate(ACTIONS):
        columns[f"p_{action}"] = _for_candidates(shown.probability[..., number].astype(np.float32))
    return pa.table(columns)


def _engagements(shown: FeedDay, ts: np.ndarray) -> pa.Table:
    request, candidate = np.nonzero(shown.engaged)
    saved = shown.action[request, candidate, ACTIONS.index("save")]
    return pa.table(
        {
            "user_id": pa.array(shown.user[request]),
            "item_id": pa.array(shown.candidates[request, candidate]),
            "action": pa.array(np.where(saved, "save", "click").tolist(), pa.string()),
            "ts": pa.array(ts[request]),
        }
    )


def _for_candidates(values_RC: np.ndarray) -> pa.ListArray:
    return list_column(np.full(len(values_RC), NUM_CANDIDATES), values_RC.ravel())
