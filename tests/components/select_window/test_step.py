import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from day_folders import DATE, day_uri, parquet

from thaw.components import storage
from thaw.components.config import RunConfig, to_parameter
from thaw.components.refused import RefusedError
from thaw.components.runs import create_run, read_failure, read_manifest
from thaw.components.select_window.step import run
from thaw.components.select_window.window import FILE_NAME, read_window

Configure = Callable[..., RunConfig]


class Artifact:
    def __init__(self) -> None:
        self.uri = ""
        self.metadata: dict[str, Any] = {}


def test_the_step_commits_the_window_document(configure: Configure, requests_uri: str, store_uri: str) -> None:
    run_uri = create_run(store_uri, "r1", configure())
    artifact = Artifact()
    _, fingerprint = run(to_parameter(configure()), run_uri, "2026-03-02", "local", artifact)
    assert artifact.uri == storage.join(run_uri, "select-window", "attempt-1")
    window = read_window(storage.join(artifact.uri, FILE_NAME))
    assert (window.date, window.fingerprint) == (DATE, fingerprint)
    manifest, _ = read_manifest(artifact.uri)
    assert manifest.outputs == {"window": FILE_NAME}
    assert manifest.window == artifact.metadata == window.summary()
    assert manifest.window["date"] == "2026-03-02"
    assert manifest.window["num_training_rows"] == 1000


def test_selecting_again_after_the_log_changed_is_a_new_attempt_with_a_new_fingerprint(
    configure: Configure, requests_uri: str, store_uri: str
) -> None:
    run_uri = create_run(store_uri, "r1", configure())
    parameters = (to_parameter(configure()), run_uri, "2026-03-02", "local")
    first = run(*parameters, Artifact())
    assert run(*parameters, Artifact()) == first
    storage.write_bytes(storage.join(day_uri(requests_uri, -1), "part-0.parquet"), parquet(130))
    artifact = Artifact()
    assert run(*parameters, artifact) != first
    assert artifact.uri.endswith("attempt-3")
    assert read_window(storage.join(run_uri, "select-window/attempt-1", FILE_NAME)).fingerprint == first.fingerprint


@pytest.mark.parametrize("store_uri", ["local"], indirect=True)
@pytest.mark.parametrize("date", ["[[ScheduledTime.2006-01-02]]", " ", "2026-02-30"])
def test_a_text_that_is_no_date_ends_the_step_before_it_lists_or_tries(
    configure: Configure, store_uri: str, date: str
) -> None:
    run_uri = create_run(store_uri, "r1", configure())  # There is no log: listing it would be another error.
    words = set()
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            run(to_parameter(configure()), run_uri, date, "local", Artifact())
        words.add(str(caught.value))
    assert len(words) == 1 and f"'{date}'" in words.pop()
    names = [path.name for path in Path(store_uri).rglob("*") if path.is_file()]
    assert sorted(names) == ["refused.json", "run.json"]


def test_missing_days_are_recorded_as_the_steps_failure(configure: Configure, store_uri: str) -> None:
    run_uri = create_run(store_uri, "r1", configure())
    artifact = Artifact()
    with pytest.raises(ValueError, match="days are missing or empty") as caught:
        run(to_parameter(configure()), run_uri, "2026-03-02", "local", artifact)
    failure = read_failure(storage.join(run_uri, "select-window", "attempt-1"))
    assert failure is not None and failure.message == str(caught.value)
    assert (artifact.uri, artifact.metadata) == ("", {})


def test_allowed_gaps_are_said_aloud(
    configure: Configure, requests_uri: str, store_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filesystem, path = storage.open_filesystem(day_uri(requests_uri, -3))
    filesystem.rm(path, recursive=True)
    config = configure("data.window.max_missing_days=1")
    run(to_parameter(config), create_run(store_uri, "r1", config), "2026-03-02", "local", Artifact())
    warnings = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"warning"' in line]
    assert [warning["message"] for warning in warnings] == ["1 missing days, as the configuration allows: 2026-02-27"]
