import hashlib
from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.runs import (
    Failure,
    NotCommittedError,
    StageManifest,
    begin_attempt,
    commit,
    fail,
    read_failure,
    read_manifest,
)
from thaw.components.runs.attempt import Attempt


def manifest_of(attempt: Attempt, **fields: object) -> StageManifest:
    return StageManifest(
        stage=attempt.stage,
        run_id=attempt.run_id,
        attempt=attempt.number,
        config={"name": "small"},
        versions={"thaw": "1"},
        started_at=attempt.started_at,
        finished_at=attempt.started_at,
        **fields,  # type: ignore[arg-type]
    )


def test_a_committed_attempt_is_read_back_with_the_digest_of_its_bytes(store_uri: str) -> None:
    attempt = begin_attempt(store_uri, "evaluate")
    manifest = manifest_of(attempt, figures={"auc": 0.75, "rows": [1, 2]}, outputs={"report": "report.html"})
    reference = commit(attempt, manifest)
    data = storage.read_bytes(storage.join(attempt.uri, "manifest.json"))
    assert reference.uri == attempt.uri
    assert reference.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert read_manifest(attempt.uri) == (manifest, reference.digest)


def test_an_attempt_without_manifest_is_not_committed_whatever_else_it_holds(store_uri: str) -> None:
    attempt = begin_attempt(store_uri, "train-frozen")
    storage.write_bytes(storage.join(attempt.uri, "model", "weights"), b"half")
    with pytest.raises(NotCommittedError) as caught:
        read_manifest(attempt.uri)
    assert str(caught.value) == f"stage train-frozen is not committed: {attempt.uri}/manifest.json is not there"


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    attempt = begin_attempt(str(tmp_path), "evaluate")
    storage.write_bytes(storage.join(attempt.uri, "manifest.json"), b'{"stage": ')
    with pytest.raises(ValueError, match=r"evaluate/attempt-1/manifest\.json is not the manifest of a stage"):
        read_manifest(attempt.uri)


def test_an_attempt_is_committed_once(tmp_path: Path) -> None:
    attempt = begin_attempt(str(tmp_path), "evaluate")
    first = commit(attempt, manifest_of(attempt))
    with pytest.raises(FileExistsError):
        commit(attempt, manifest_of(attempt, figures={"auc": 1.0}))
    assert read_manifest(attempt.uri)[1] == first.digest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_a_figure_that_json_cannot_hold_commits_nothing(tmp_path: Path, value: object) -> None:
    attempt = begin_attempt(str(tmp_path), "evaluate")
    with pytest.raises(ValueError, match="evaluate: a figure has no place in JSON"):
        commit(attempt, manifest_of(attempt, figures={"heads": {"click": value}}))
    assert not storage.exists(storage.join(attempt.uri, "manifest.json"))


def test_a_failure_is_read_back(store_uri: str) -> None:
    attempt = begin_attempt(store_uri, "train-frozen")
    assert read_failure(attempt.uri) is None
    failure = Failure(
        message="worker-1 died",
        stage="train-frozen",
        replica="worker-1",
        signal=9,
        last_lines=("a", "b"),
        hint="more memory",
    )
    fail(attempt, failure)
    assert read_failure(attempt.uri) == failure
