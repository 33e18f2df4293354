"""A pipeline's first step through kfp.local."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from thaw.components.config import load
from thaw.components.runs import create_run, read_manifest
from thaw.pipelines.local import run_pipeline
from thaw.pipelines.progress import Progress

COLUMNS = ("request_id", "user_id", "candidates", "history", "segment", "click", "save", "hide")


def write_day(log: Path, day: str, num_rows: int) -> None:
    file = log / f"requests/day={day}/part-0.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({column: pa.array(range(num_rows)) for column in COLUMNS}), file)


def test_equal_arguments_select_what_is_there_now_and_not_what_was_there_before(tmp_path: Path) -> None:
    # https://github.com/kubeflow/pipelines/issues/4857
    plain = ("data.truth_path=null", "data.items=null", "backbone.pretrain=null", "backbone.fetch={uri: x}")
    config = load("small", [f"data.uri={tmp_path}/log", "data.window.num_days=2", *plain])
    for day in ("2026-02-28", "2026-03-01", "2026-03-02"):
        write_day(tmp_path / "log", day, 100)
    kind, date = "stage:select-window", "2026-03-02"
    run_uri = create_run(str(tmp_path), "r", config, {"date": date, "backend": "local", "kind": kind})
    selected = []
    for num_rows in (100, 130):
        write_day(tmp_path / "log", "2026-03-01", num_rows)
        with Progress(["select-window"], Console()) as progress:
            run_pipeline(config, run_uri, {"date": date}, progress, kind)
        window = read_manifest(f"{run_uri}/select-window/attempt-{len(selected) + 1}")[0].window
        assert window is not None
        selected.append((window["num_training_rows"], window["fingerprint"]))
    before, after = selected
    assert (before[0], after[0]) == (200, 230)
    assert before[1] != after[1]
