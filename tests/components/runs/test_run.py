from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.runs import create_run, newest_runs, read_run

CONFIG = load("small")


def test_a_run_records_what_was_asked_for(store_uri: str) -> None:
    run_uri = create_run(store_uri, "small-1", CONFIG, {"date": "2026-03-02"})
    assert run_uri == storage.join(store_uri, "runs", "small-1")
    record = read_run(run_uri)
    assert record.run_id == "small-1"
    assert record.config == CONFIG.model_dump(mode="json")
    assert record.extra == {"date": "2026-03-02"}
    assert {"python", "thaw", "torch", "kfp"} <= record.versions.keys()


def test_a_taken_run_id_is_refused_and_the_run_untouched(store_uri: str) -> None:
    run_uri = create_run(store_uri, "r1", CONFIG)
    before = storage.read_bytes(storage.join(run_uri, "run.json"))
    with pytest.raises(ValueError, match=r"'r1' is taken: .*runs/r1"):
        create_run(store_uri, "r1", load("demo"))
    assert storage.read_bytes(storage.join(run_uri, "run.json")) == before


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "../a", "run-[[ScheduledTime]]", "a b", "-a", "ä"])
def test_a_run_id_that_is_no_plain_name_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run id"):
        create_run(str(tmp_path), run_id, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no run at {tmp_path}/runs/r9"):
        read_run(f"{tmp_path}/runs/r9")


def test_a_file_where_the_root_should_be_is_one_clear_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("")
    for ask in (lambda: create_run(str(root), "r1", CONFIG), lambda: newest_runs(str(root), 20)):
        with pytest.raises(storage.StorageError, match=f"{root} is a file, and a folder should be there"):
            ask()
