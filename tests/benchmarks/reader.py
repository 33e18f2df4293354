"""The reader against pyarrow's scan of the same columns: rows a second, one core, warm cache, shuffle on.

    python tests/benchmarks/reader.py

Generates about 200k requests like the demo's (history up to 16, 8 candidates, 3 heads), then takes turns: pyarrow's
dataset scan to record batches, and RequestLoader to RequestBatch, each over the whole log. The ratio is that of the
two medians. On a machine that does other work too, look at the ratio of CPU times and at the spread.
"""

import argparse
import datetime
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import torch

from thaw.components.config import RunConfig, load
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestLoader

NUM_USERS, NUM_ITEMS, NUM_CANDIDATES, HEADS = 6000, 12000, 8, ("click", "save", "hide")


def write_log(folder: Path, num_days: int, num_requests: int, row_group_size: int) -> list[DataFile]:
    """A day a file."""
    files = []
    for day in range(num_days):
        random = np.random.default_rng(day)
        history_lengths = np.minimum(16, random.integers(4, 40, num_requests))
        candidate_offsets = pa.array(np.arange(num_requests + 1, dtype=np.int32) * NUM_CANDIDATES)

        def lists(offsets: pa.Array, values: np.ndarray) -> pa.Array:
            return pa.ListArray.from_arrays(offsets, pa.array(values))

        num_candidates = num_requests * NUM_CANDIDATES
        table = pa.table(
            {
                "request_id": np.arange(num_requests) + day * num_requests,
                "user_id": random.integers(0, NUM_USERS, num_requests),
                "segment": random.integers(0, 4, num_requests),
                "history": lists(
                    pa.array(np.concatenate([[0], np.cumsum(history_lengths)]).astype(np.int32)),
                    random.zipf(1.3, history_lengths.sum()) % NUM_ITEMS,
                ),
                "candidates": lists(candidate_offsets, random.zipf(1.3, num_candidates) % NUM_ITEMS),
            }
            | {head: lists(candidate_offsets, (random.random(num_candidates) < 0.1).astype(np.int8)) for head in HEADS}
        )
        path = folder / f"{day}.parquet"
        pq.write_table(table, path, row_group_size=row_group_size)
        row_groups = pq.read_metadata(path)
        files.append(
            DataFile(
                uri=str(path),
                day=datetime.date(2026, 3, 1) + datetime.timedelta(days=day),
                size=path.stat().st_size,
                version="sha256:0",
                row_groups=tuple(row_groups.row_group(group).num_rows for group in range(row_groups.num_row_groups)),
            )
        )
    return files


def scan(files: list[DataFile], config: RunConfig) -> int:
    """All rows through pyarrow, as record batches."""
    columns = ["request_id", "user_id", "segment", "history", "candidates", *HEADS]
    dataset = pyarrow.dataset.dataset([file.uri for file in files])
    return sum(batch.num_rows for batch in dataset.scanner(columns=columns, use_threads=False).to_batches())


def read(files: list[DataFile], config: RunConfig) -> int:
    """All rows through the loader, as batches of jagged tensors."""
    return sum(batch.num_requests for batch in RequestLoader(config, files, 0, 1, 0))


def seconds(run: Callable[[list[DataFile], RunConfig], int], files: list[DataFile], config: RunConfig) -> np.ndarray:
    """Wall and CPU time."""
    start = np.array([time.perf_counter(), time.process_time()])
    num_rows = run(files, config)
    assert num_rows == sum(file.num_rows for file in files)
    return np.array([time.perf_counter(), time.process_time()]) - start


def main() -> None:
    """Print a line for each batch size."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--requests-per-day", type=int, default=20_000)
    arguments.add_argument("--row-group-size", type=int, default=5_000)
    arguments.add_argument("--shuffle-rows", type=int, default=65_536)
    arguments.add_argument("--rounds", type=int, default=15)
    options = arguments.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        files = write_log(Path(folder), 10, options.requests_per_day, options.row_group_size)
        num_rows = sum(file.num_rows for file in files)
        for batch_size in (32, 4096):
            config = load(
                "demo",
                [f"training.global_batch_size={batch_size}", f"training.shuffle_rows={options.shuffle_rows}"],
            )
            rounds = np.array([[seconds(run, files, config) for run in (scan, read)] for _ in range(options.rounds)])
            (scan_s, scan_cpu_s), (read_s, read_cpu_s) = np.median(rounds, axis=0)
            each = rounds[:, 0, 0] / rounds[:, 1, 0]
            print(
                f"batch {batch_size}: scan {num_rows / scan_s / 1e3:.0f}k rows/s, "
                f"reader {num_rows / read_s / 1e3:.0f}k rows/s, ratio of medians {scan_s / read_s:.2f}, "
                f"of CPU time {scan_cpu_s / read_cpu_s:.2f}, "
                f"of single rounds {each.min():.2f} to {each.max():.2f}; load average {os.getloadavg()[0]:.1f}"
            )


if __name__ == "__main__":
    main()
