import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slow_server import slow_gcs

from thaw.components import storage
from thaw.components.config import load
from thaw.components.runs import begin_attempt, create_run, newest_runs, run_status, stage

CONFIG = load("small")


def states(run_uri: str) -> dict[str, str]:
    return {status.stage: status.state for status in run_status(run_uri).stages}


def test_the_status_tells_every_stage_of_the_recipe_and_what_became_of_it(store_uri: str) -> None:
    run_uri = create_run(store_uri, "r1", CONFIG)
    assert set(states(run_uri).values()) == {"absent"}
    with stage(CONFIG, run_uri, "select-window") as select:
        select.commit(figures={"rows": 3})
    with pytest.raises(ValueError), stage(CONFIG, run_uri, "prepare-backbone"):
        raise ValueError("no such table")
    begin_attempt(run_uri, "train-frozen")
    assert list(states(run_uri).items()) == [
        ("select-window", "committed"),
        ("prepare-backbone", "failed"),
        ("train-frozen", "running"),
        ("train-cotrain", "absent"),
        ("evaluate", "absent"),
    ]
    status = run_status(run_uri)
    assert status.record.run_id == "r1"
    assert status.state == "failed"
    selected, prepared = status.stages[:2]
    assert selected.manifest is not None and selected.manifest.figures == {"rows": 3}
    assert prepared.failure is not None and prepared.failure.message == "no such table"


def test_the_stages_are_those_of_the_runs_own_recipe(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "r1", load("small", ["recipe.policies=[frozen, frozen]"]))
    assert list(states(run_uri))[2:4] == ["train-frozen", "train-frozen-2"]


def test_the_newest_attempt_tells_the_state(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "r1", CONFIG)
    with pytest.raises(ValueError), stage(CONFIG, run_uri, "select-window"):
        raise ValueError("first try")
    with stage(CONFIG, run_uri, "select-window") as second:
        second.commit()
    status = run_status(run_uri).stages[0]
    assert (status.state, status.attempt, status.uri) == ("committed", 2, second.uri)


def test_a_run_is_committed_when_all_its_stages_are(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "r1", CONFIG)
    for name in states(run_uri):
        assert run_status(run_uri).state == "unfinished"
        with stage(CONFIG, run_uri, name) as current:
            current.commit()
    assert run_status(run_uri).state == "committed"


def test_a_stage_whose_process_was_killed_has_died_and_does_not_run(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "r1", CONFIG)
    script = """
import os, signal, sys
from thaw.components.runs import begin_attempt
begin_attempt(sys.argv[1], "train-frozen")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script, run_uri]).returncode == -signal.SIGKILL
    assert states(run_uri)["train-frozen"] == "died"


def test_of_a_process_on_another_machine_nothing_is_assumed(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "r1", CONFIG)
    attempt = begin_attempt(run_uri, "train-frozen")
    claim_uri = storage.join(attempt.uri, "claim.json")
    storage.write_json(claim_uri, storage.read_json(claim_uri) | {"host": "thaw-pod-7", "pid": 1 << 22})
    assert states(run_uri)["train-frozen"] == "running"


def test_the_newest_runs_are_listed_with_their_status_and_other_folders_are_not_runs(store_uri: str) -> None:
    assert newest_runs(store_uri, 20).num_runs == 0
    uris = [create_run(store_uri, run_id, CONFIG) for run_id in ("b", "c", "a")]
    storage.write_bytes(storage.join(store_uri, "runs", "stray", "note"), b"")
    with stage(CONFIG, uris[2], "select-window") as select:
        select.commit(figures={"rows": 3})
    everything = newest_runs(store_uri, 20)
    assert {status.uri for status in everything.statuses} == set(uris)
    assert (everything.damaged, everything.num_runs) == ((), 3)
    newest = newest_runs(store_uri, 2)
    assert [status.uri for status in newest.statuses] == sorted(uris[1:])  # All began in one second.
    assert newest.num_runs == 3
    assert newest.statuses[0] == run_status(uris[2])


def test_the_newest_runs_come_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    for run_id, began in (("b", "2026-03-02T06:00:00+00:00"), ("a", "2026-03-01T06:00:00+00:00")):
        uri = storage.join(create_run(str(tmp_path), run_id, CONFIG), "run.json")
        storage.write_json(uri, storage.read_json(uri) | {"created_at": began})
    assert [status.record.run_id for status in newest_runs(str(tmp_path), 20).statuses] == ["b", "a"]


def test_a_damaged_run_is_named_with_its_fault_among_the_others(tmp_path: Path) -> None:
    run_uri = create_run(str(tmp_path), "good", CONFIG)
    storage.write_bytes(f"{tmp_path}/runs/bad/run.json", b"{")
    newest = newest_runs(str(tmp_path), 20)
    assert [status.uri for status in newest.statuses] == [run_uri]
    ((uri, fault),) = newest.damaged
    assert uri == f"{tmp_path}/runs/bad"
    assert "bad/run.json is not the record of a run" in fault


def test_the_newest_of_many_runs_take_one_listing_and_what_is_read_of_these_alone(gcs_uri: str) -> None:
    filesystem, path = storage.open_filesystem(gcs_uri)
    record = storage.read_bytes(storage.join(create_run(gcs_uri, "r000", CONFIG), "run.json"))
    others = [f"r{number:03}" for number in range(1, 100)]
    filesystem.pipe({f"{path}/runs/{run_id}/run.json": record for run_id in others})
    with stage(CONFIG, create_run(gcs_uri, "newest", CONFIG), "select-window") as select:
        select.commit()
    with slow_gcs() as server:
        newest = newest_runs(gcs_uri, 3)
    assert (newest.num_runs, len(newest.statuses)) == (101, 3)
    listings = [path for method, path in server.requests if "matchGlob" in path]
    assert len(listings) == 1 + 3  # The root's, and one of each run that is shown.
    # Of each its record; of the one stage that was begun its claim and its manifest.
    assert len(server.requests) == len(listings) + 3 + 2
