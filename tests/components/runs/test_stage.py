import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.runs import (
    Failure,
    NotCommittedError,
    begin_attempt,
    fail,
    read_failure,
    read_manifest,
    stage,
    versions,
)
from thaw.components.runs.attempt import take_attempt

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


class SilentJobError(Exception):
    last_lines = ()


def test_a_job_that_left_no_lines_is_not_given_those_of_the_step(tmp_path: Path) -> None:
    with pytest.raises(SilentJobError), stage(CONFIG, str(tmp_path), "train-frozen"):
        raise SilentJobError("worker-1 was killed")
    failure = read_failure(f"{tmp_path}/train-frozen/attempt-1")
    assert failure is not None and failure.last_lines == ()


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


def committed_inputs(run_uri: str) -> dict[str, str]:
    with stage(CONFIG, run_uri, "select-window") as select:
        select.commit(outputs={"window": "window.json"})
    return {"window": select.uri}


def test_a_stage_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    inputs = committed_inputs(str(tmp_path))
    with stage(CONFIG, str(tmp_path), "evaluate", inputs) as first:
        assert not first.committed
        first.commit(figures={"auc": 0.75})
    with stage(CONFIG, str(tmp_path), "evaluate", inputs) as again:
        assert (again.committed, again.uri, again.figures) == (first.committed, first.uri, {"auc": 0.75})
    assert not (tmp_path / "evaluate" / "attempt-2").exists()


def test_other_inputs_or_another_configuration_make_another_attempt(tmp_path: Path) -> None:
    inputs = committed_inputs(str(tmp_path))
    with stage(CONFIG, str(tmp_path), "evaluate", inputs) as first:
        first.commit()
    for number, (config, changed) in enumerate(
        [(load("small", ["seed=1"]), inputs), (CONFIG, committed_inputs(str(tmp_path)))], start=2
    ):
        with stage(config, str(tmp_path), "evaluate", changed) as other:
            assert not other.committed and other.attempt.number == number
            other.commit()


def test_an_open_attempt_is_taken_up_where_that_is_asked_for(tmp_path: Path) -> None:
    inputs = committed_inputs(str(tmp_path))
    left = begin_attempt(str(tmp_path), "evaluate")
    with stage(CONFIG, str(tmp_path), "evaluate", inputs, takes_up=True) as taken_up:
        assert taken_up.attempt == left
        taken_up.commit()
    assert read_manifest(left.uri)[0].started_at == left.started_at


@pytest.mark.parametrize("takes_up", [False, True])
def test_an_attempt_that_failed_or_is_not_asked_for_is_left_alone(tmp_path: Path, takes_up: bool) -> None:
    left = begin_attempt(str(tmp_path), "evaluate")
    if takes_up:
        fail(left, Failure(message="over", stage="evaluate"))
    with stage(CONFIG, str(tmp_path), "evaluate", takes_up=takes_up) as current:
        assert current.attempt.number == 2
        current.commit()


def test_a_stage_goes_on_in_its_next_attempt_where_the_one_taken_up_is_over(tmp_path: Path) -> None:
    left = begin_attempt(str(tmp_path), "evaluate")
    with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as current:
        current.begin_anew(JobDiedError("its job was gone"))
        assert current.uri == f"{tmp_path}/evaluate/attempt-2"
        current.commit()
    failure = read_failure(left.uri)
    assert failure is not None and failure.message == "its job was gone"
    assert read_manifest(current.uri)[0].attempt == 2


def test_what_goes_wrong_in_an_attempt_taken_up_does_not_close_it_while_its_job_may_live(tmp_path: Path) -> None:
    left = begin_attempt(str(tmp_path), "evaluate")
    with pytest.raises(OSError), stage(CONFIG, str(tmp_path), "evaluate", takes_up=True):
        raise OSError("the store is away for a moment")
    assert read_failure(left.uri) is None
    with pytest.raises(OSError), stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as current:
        assert current.attempt == left
        current.job_may_live = False
        raise OSError("no room for the report")
    failure = read_failure(left.uri)
    assert failure is not None and failure.message == "no room for the report"


def test_starts_at_the_same_time_get_one_attempt_and_commit_it_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: take_attempt(str(tmp_path), "evaluate"), range(8)))
    assert {attempt.number for attempt, _ in taken} == {1}
    assert sorted(is_others for _, is_others in taken) == [False] + 7 * [True]
    with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as first:
        with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as second:
            second.commit(figures={"auc": 0.5})
        assert first.commit(figures={"auc": 0.5}) == second.committed
    assert read_failure(first.uri) is None


def test_two_that_find_the_same_job_gone_go_on_in_one_attempt(tmp_path: Path) -> None:
    begin_attempt(str(tmp_path), "evaluate")
    with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as first:
        with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as second:
            first.begin_anew(JobDiedError("its job was gone"))
            second.begin_anew(JobDiedError("its job was gone"))
            assert first.attempt.number == second.attempt.number == 2
            assert not first.job_may_live and second.job_may_live
            second.commit()
        first.commit()


class StillThereError(Exception):
    leaves_open = True


def test_an_attempt_whose_job_may_live_on_has_not_failed(tmp_path: Path) -> None:
    with pytest.raises(StillThereError), stage(CONFIG, str(tmp_path), "evaluate"):
        raise StillThereError
    assert read_failure(f"{tmp_path}/evaluate/attempt-1") is None
    with stage(CONFIG, str(tmp_path), "evaluate", takes_up=True) as current:
        assert current.attempt.number == 1
        current.commit()
