from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.refused import RefusedError
from thaw.components.runs import ChangedOutputError, check_same_config, read_refusal, refusing, stage

CONFIG = load("small")


def test_what_was_refused_once_is_not_tried_again_and_ends_with_the_same_words(store_uri: str) -> None:
    with pytest.raises(RefusedError, match="no such day"), refusing(store_uri, "select-window", "2026-02-30"):
        raise RefusedError("no such day")
    refusal = read_refusal(store_uri, "select-window")
    assert refusal is not None and refusal.message == "no such day"
    with pytest.raises(RefusedError, match=r"^no such day$"), refusing(store_uri, "select-window", "2026-02-30"):
        pytest.fail("it was tried again")


def test_something_else_that_is_asked_for_in_the_same_place_is_tried(store_uri: str) -> None:
    with pytest.raises(RefusedError), refusing(store_uri, "select-window", "2026-02-30"):
        raise RefusedError("no such day")
    tried = []
    with refusing(store_uri, "select-window", "2026-02-28"):
        tried.append("2026-02-28")
    with refusing(store_uri, "evaluate", "2026-02-30"):
        tried.append("another stage")
    assert tried == ["2026-02-28", "another stage"]
    with pytest.raises(RefusedError, match="no such month"), refusing(store_uri, "select-window", "2026-13-01"):
        raise RefusedError("no such month")
    refusal = read_refusal(store_uri, "select-window")
    assert refusal is not None and refusal.message == "no such day"


@pytest.mark.parametrize("error", [ValueError("days are missing"), OSError("no answer"), RuntimeError("a rank died")])
def test_what_a_retry_can_mend_leaves_no_mark(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)), refusing(str(tmp_path), "select-window"):
        raise error
    assert read_refusal(str(tmp_path), "select-window") is None


def test_a_stage_that_was_refused_makes_one_attempt(tmp_path: Path) -> None:
    run_uri = str(tmp_path / "runs/r")
    with stage(CONFIG, run_uri, "select-window") as select:
        select.commit(window={"date": "2026-03-02"})
    other = load("small", ["seed=7"])
    messages = set()
    for _ in range(3):
        with (
            pytest.raises(RefusedError) as caught,
            stage(other, run_uri, "train-frozen", {"window": select.uri}) as current,
        ):
            check_same_config(current.manifests["window"].config, other)
        messages.add(str(caught.value))
    assert messages == {
        "the checkpoint was trained under another configuration: seed: 0 in the checkpoint, 7 in this run"
    }
    assert [path.name for path in (tmp_path / "runs/r/train-frozen").iterdir() if path.is_dir()] == ["attempt-1"]
    with stage(CONFIG, run_uri, "train-frozen", {"window": select.uri}) as current:
        current.commit()
    assert current.attempt.number == 2


def test_a_mark_that_cannot_be_written_hides_not_the_refusal(tmp_path: Path) -> None:
    (tmp_path / "select-window").write_text("a file")
    with pytest.raises(storage.StorageError), refusing(str(tmp_path), "select-window"):
        pytest.fail("whether it was refused before cannot be known")
    with pytest.raises(RefusedError, match="the cause") as caught, refusing(str(tmp_path / "run"), "evaluate"):
        (tmp_path / "run").write_text("a file")
        raise RefusedError("the cause")
    assert "could not be recorded" in caught.value.__notes__[0]


def test_a_changed_input_is_refused_for_good() -> None:
    assert issubclass(ChangedOutputError, RefusedError)
