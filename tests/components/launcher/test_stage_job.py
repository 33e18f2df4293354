from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.launcher.stage_job import run_stage_job
from thaw.components.runs import read_failure, stage
from thaw.components.select_window.calendar import parse_date
from thaw.components.select_window.pins import ChangedFileError
from thaw.components.select_window.selection import select

COLUMNS = ("request_id", "user_id", "candidates", "history", "segment", "click", "save", "hide")


@pytest.mark.parametrize(
    ("change", "words"), [("deleted", "in the manifest but not found"), ("replaced", "it changed")]
)
def test_a_file_that_is_not_what_was_selected_ends_the_stage_before_its_job(
    tmp_path: Path, change: str, words: str
) -> None:
    plain = ["data.truth_path=null", "data.items=null", "backbone.pretrain=null", "backbone.fetch={uri: x}"]
    config = load("small", [f"data.uri={tmp_path}/log", "data.window.num_days=2", *plain])
    for day in ("2026-02-28", "2026-03-01", "2026-03-02"):
        file = tmp_path / f"log/requests/day={day}/part-0.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.table({column: pa.array(range(100)) for column in COLUMNS}), file)
    run_uri = str(tmp_path / "runs/r")
    with stage(config, run_uri, "select-window") as selecting:
        window = select(config, parse_date("2026-03-02"))
        storage.write_bytes(storage.join(selecting.uri, "window.json"), window.model_dump_json().encode())
        selecting.commit(outputs={"window": "window.json"})

    victim = tmp_path / "log/requests/day=2026-03-01/part-0.parquet"
    if change == "deleted":
        victim.unlink()
    else:
        pq.write_table(pa.table({column: pa.array(range(100, 200)) for column in COLUMNS}), victim)
    with (
        pytest.raises(ChangedFileError, match=words) as caught,
        stage(config, run_uri, "train-frozen", {"window": selecting.uri}) as current,
    ):
        run_stage_job(current, config, "local", "train", policy="frozen")
    assert str(victim) in str(caught.value)
    attempt = Path(run_uri, "train-frozen/attempt-1")
    assert not (attempt / "job.json").exists()
    failure = read_failure(str(attempt))
    assert failure is not None and failure.message == str(caught.value)
