from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thaw.components import storage
from thaw.components.config import RunConfig, load
from thaw.components.launcher.job import LAUNCHED
from thaw.components.launcher.stage_job import run_stage_job
from thaw.components.runs import read_failure, stage
from thaw.components.select_window.calendar import parse_date
from thaw.components.select_window.pins import ChangedFileError
from thaw.components.select_window.selection import select

COLUMNS = ("request_id", "user_id", "candidates", "history", "segment", "click", "save", "hide")


@pytest.fixture
def selected(tmp_path: Path) -> tuple[RunConfig, str, str, Path]:
    """A configuration, a run's folder, the attempt that selected its window, and one of its files."""
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
    return config, run_uri, selecting.uri, tmp_path / "log/requests/day=2026-03-01/part-0.parquet"


@pytest.mark.parametrize(
    ("change", "words"), [("deleted", "in the manifest but not found"), ("replaced", "it changed")]
)
def test_a_file_that_is_not_what_was_selected_ends_the_stage_before_its_job(
    selected: tuple[RunConfig, str, str, Path], change: str, words: str
) -> None:
    config, run_uri, window_uri, victim = selected
    if change == "deleted":
        victim.unlink()
    else:
        pq.write_table(pa.table({column: pa.array(range(100, 200)) for column in COLUMNS}), victim)
    with (
        pytest.raises(ChangedFileError, match=words) as caught,
        stage(config, run_uri, "train-frozen", {"window": window_uri}) as current,
    ):
        run_stage_job(current, config, "local", "train", policy="frozen")
    assert str(victim) in str(caught.value)
    attempt = Path(run_uri, "train-frozen/attempt-1")
    assert not (attempt / "job.json").exists()
    failure = read_failure(str(attempt))
    assert failure is not None and failure.message == str(caught.value)


@pytest.mark.parametrize("is_launched", [False, True])
def test_what_befalls_one_start_does_not_end_an_attempt_whose_job_another_has_launched(
    selected: tuple[RunConfig, str, str, Path], is_launched: bool
) -> None:
    config, run_uri, window_uri, victim = selected
    victim.unlink()
    with (
        pytest.raises(ChangedFileError),
        stage(config, run_uri, "train-frozen", {"window": window_uri}, takes_up=True) as current,
    ):
        if is_launched:
            storage.create_json(storage.join(current.uri, LAUNCHED), {"job": "r", "uid": "1"})
        run_stage_job(current, config, "kubernetes", "train", policy="frozen")
    assert (read_failure(current.uri) is None) == is_launched
