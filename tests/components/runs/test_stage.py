import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.runs import NotCommittedError, begin_attempt, read_failure, read_manifest, stage, versions

CONFIG = load("small")


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_stage_commits_what_it_was_made_from_and_what_came_of_it(
    store_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_uri = storage.join(store_uri, "runs", "r1")
    with stage(CONFIG, run_uri, "select-window") as select:
        window = select.commit(outputs={"window": "window.json"}, window={"date": "2026-03-02"})
    with stage(CONFIG, run_uri, "evaluate", inputs={"window": window.uri}) as evaluate:
        assert evaluate.manifests["window"].outputs == {"window": "window.json"}
        storage.write_bytes(storage.join(evaluate.uri, "report.html"), b"")
        evaluate.commit(figures={"auc": 0.75}, outputs={"report": "report.html"})
    manifest, _ = read_manifest(storage.join(run_uri, "evaluate", "attempt-1"))
    assert (manifest.stage, manifest.run_id, manifest.attempt) == ("evaluate", "r1", 1)
    assert manifest.config == CONFIG.model_dump(mode="json")
    assert manifest.inputs == {"window": window}
    assert manifest.figures == {"auc": 0.75}
    assert manifest.versions == versions()
    assert manifest.started_at <= manifest.finished_at
    assert read_manifest(window.uri)[0].window == {"date": "2026-03-02"}
    assert [(event["stage"], event["status"]) for event in events(capsys)] == [
        ("select-window", "started"),
        ("select-window", "committed"),
        ("evaluate", "started"),
        ("evaluate", "committed"),
    ]


def test_an_input_that_is_not_committed_ends_the_stage_before_its_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uncommitted = begin_attempt(str(tmp_path), "train-frozen")
    with (
        pytest.raises(NotCommittedError, match=f"stage train-frozen is not committed: {uncommitted.uri}"),
        stage(CONFIG, str(tmp_path), "evaluate", inputs={"model": uncommitted.uri}),
    ):
        pytest.fail("the stage began")
    failure = read_failure(f"{tmp_path}/evaluate/attempt-1")
    assert failure is not None and "train-frozen is not committed" in failure.message
    assert events(capsys)[-1]["status"] == "failed"


class JobDiedError(Exception):
    replica = "worker-1"
    exit_code = 137
    signal = 9
    last_lines = ("step 3", "Killed")
    hint = "give the replicas more memory"


def test_a_failure_keeps_what_the_exception_knows(tmp_path: Path) -> None:
    with pytest.raises(JobDiedError), stage(CONFIG, str(tmp_path), "train-frozen"):
        raise JobDiedError("job small-train-frozen: worker-1 was killed")
    failure = read_failure(f"{tmp_path}/train-frozen/attempt-1")
    assert failure is not None
    assert failure.message == "job small-train-frozen: worker-1 was killed"
    assert (failure.replica, failure.exit_code, failure.signal) == ("worker-1", 137, 9)
    assert failure.last_lines == ("step 3", "Killed")
    assert failure.hint == "give the replicas more memory"


@pytest.mark.parametrize(
    ("error", "message", "hint", "has_stack"),
    [
        (ValueError("labels other than 0 and 1"), "labels other than 0 and 1", "set right what", False),
        (storage.StorageError("gs://b/x", "no room"), "gs://b/x: no room", "see that gs://b/x can be reached", False),
        (KeyboardInterrupt(), "KeyboardInterrupt", "ended from outside", True),
        (ZeroDivisionError("division by zero"), "division by zero", "last lines", True),
    ],
)
def test_every_failure_says_what_to_do_next(
    tmp_path: Path, error: BaseException, message: str, hint: str, has_stack: bool
) -> None:
    with pytest.raises(type(error)), stage(CONFIG, str(tmp_path), "evaluate"):
        raise error
    failure = read_failure(f"{tmp_path}/evaluate/attempt-1")
    assert failure is not None
    assert failure.message == message
    assert failure.hint is not None and hint in failure.hint
    assert any(Path(__file__).name in line for line in failure.last_lines) == has_stack


def test_another_try_leaves_the_failed_one_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="first try"), stage(CONFIG, str(tmp_path), "evaluate"):
        raise ValueError("first try")
    with stage(CONFIG, str(tmp_path), "evaluate") as second:
        second.commit()
    assert second.attempt.number == 2
    failure = read_failure(f"{tmp_path}/evaluate/attempt-1")
    assert failure is not None and failure.message == "first try"


def test_a_failure_that_cannot_be_recorded_hides_not_the_cause(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the cause") as caught, stage(CONFIG, str(tmp_path / "run"), "evaluate"):
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("now a file")
        raise ValueError("the cause")
    assert "could not be recorded" in caught.value.__notes__[0]
    assert "is a file, and a folder should be there" in caught.value.__notes__[0]


def test_an_error_after_the_commit_leaves_it_committed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), stage(CONFIG, str(tmp_path), "evaluate") as evaluate:
        evaluate.commit()
        raise RuntimeError("afterwards")
    assert read_manifest(evaluate.uri)[0].stage == "evaluate"
    assert read_failure(evaluate.uri) is None


def test_a_stage_that_forgets_to_commit_has_failed(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="stage evaluate ended without a commit"),
        stage(CONFIG, str(tmp_path), "evaluate"),
    ):
        pass
    assert read_failure(f"{tmp_path}/evaluate/attempt-1") is not None
