import datetime
import multiprocessing
from pathlib import Path

import pytest
from click.testing import CliRunner
from evaluated import evaluated

from thaw.components import storage
from thaw.components.promote.claims import ClaimedError, DamagedClaim, Promoted, claim, latest, promoted_runs
from thaw.components.runs import ChangedOutputError
from thaw.pipelines.cli import main

DATE = datetime.date(2026, 3, 2)


def promote(root: str, run_id: str, date: datetime.date, auc: float = 0.7) -> None:
    claim(*evaluated(root, run_id, date, auc), metric="click auc")


def test_a_claim_says_which_run_by_what_and_as_it_was_evaluated(store_uri: str) -> None:
    run_uri, reference, manifest = evaluated(store_uri, "one", DATE, auc=0.75)
    promoted = claim(run_uri, reference, manifest, "click auc")
    assert (promoted.date, promoted.run_id, promoted.run_uri) == (DATE, "one", run_uri)
    assert promoted.evaluate == reference
    assert (promoted.metric, promoted.by) == ("click auc", "gate")
    assert promoted.scores["click"]["auc"] == 0.75
    assert storage.exists(storage.join(store_uri, "promoted", "2026-03-02.json"))
    assert latest(store_uri) == promoted


def test_an_older_run_that_ends_later_displaces_nothing(store_uri: str) -> None:
    assert latest(store_uri) is None
    for days, name in ((0, "today"), (-7, "older"), (-1, "yesterday")):
        promote(store_uri, name, DATE + datetime.timedelta(days))
    newest = latest(store_uri)
    assert newest is not None and newest.run_id == "today"
    listed = [run.run_id for run in promoted_runs(store_uri) if isinstance(run, Promoted)]
    assert listed == ["today", "yesterday", "older"]
    before = latest(store_uri, before=DATE)
    assert before is not None and before.run_id == "yesterday"
    assert latest(store_uri, before=DATE - datetime.timedelta(7)) is None


def test_a_date_is_claimed_by_one_run_for_ever(store_uri: str) -> None:
    first = claim(*evaluated(store_uri, "one", DATE), metric="click auc")
    assert claim(*evaluated_again(store_uri, "one"), metric="click auc") == first
    with pytest.raises(
        ClaimedError, match=r"2026-03-02 is claimed by run one, promoted at .*promoted/2026-03-02\.json"
    ):
        promote(store_uri, "two", DATE, auc=0.9)
    assert latest(store_uri) == first


def evaluated_again(store_uri: str, run_id: str) -> tuple:
    from thaw.components.runs import Reference, read_manifest

    run_uri = storage.join(store_uri, "runs", run_id)
    manifest, digest = read_manifest(storage.join(run_uri, "evaluate", "attempt-1"))
    return run_uri, Reference(uri=storage.join(run_uri, "evaluate", "attempt-1"), digest=digest), manifest


def try_to_promote(arguments: tuple[str, str]) -> str:
    try:
        promote(*arguments, DATE)
    except ClaimedError:
        return "claimed"
    return "promoted"


def test_of_runs_that_claim_a_date_at_once_one_gets_it(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        ends = pool.map(try_to_promote, [(str(tmp_path), f"run-{k}") for k in range(4)], chunksize=1)
    assert sorted(ends) == ["claimed", "claimed", "claimed", "promoted"]


def test_what_a_killed_writer_left_is_no_claim_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    promote(str(tmp_path), "one", DATE)
    (tmp_path / "promoted/.2026-03-03.json.0a1b.tmp").write_text("{")
    newest = latest(str(tmp_path))
    assert newest is not None and newest.run_id == "one"
    (tmp_path / "promoted/2026-03-04.json").write_text("{")
    with pytest.raises(ValueError, match=r"promoted/2026-03-04\.json is not the claim of a promoted run") as caught:
        latest(str(tmp_path))
    assert "pydantic" not in str(caught.value) and "\n" not in str(caught.value)
    damaged, one = promoted_runs(str(tmp_path))
    assert isinstance(damaged, DamagedClaim) and (str(damaged.date), damaged.fault) == ("2026-03-04", str(caught.value))
    assert isinstance(one, Promoted) and one.run_id == "one"
    shown = CliRunner().invoke(main, ["promoted", "--root", str(tmp_path)])
    assert shown.exit_code == 0
    _, *rows, fault = shown.output.splitlines()
    assert [row.split()[:2] for row in rows] == [["2026-03-04", "damaged"], ["2026-03-02", "one"]]
    assert fault == damaged.fault


@pytest.mark.parametrize("name", ["20270303.json", "2026-W50-1.json", "2027-03-03", "2027-02-30.json", "notes.txt"])
def test_what_is_not_named_as_a_claim_is_none(tmp_path: Path, name: str) -> None:
    promote(str(tmp_path), "one", DATE)
    (tmp_path / "promoted" / name).write_text("{}")
    newest = latest(str(tmp_path))
    assert newest is not None and newest.run_id == "one"


def test_a_claim_that_lies_under_another_date_is_damaged(tmp_path: Path) -> None:
    promote(str(tmp_path), "one", DATE)
    (tmp_path / "promoted/2026-03-02.json").rename(tmp_path / "promoted/2026-03-09.json")
    with pytest.raises(ValueError, match=r"2026-03-09\.json is not the claim of its date: it says 2026-03-02"):
        latest(str(tmp_path))


def test_figures_that_are_not_what_evaluate_wrote_promote_nothing(tmp_path: Path) -> None:
    run_uri, reference, manifest = evaluated(str(tmp_path), "one", DATE, auc=0.6)
    metrics = Path(reference.uri, "metrics.json")
    metrics.write_text(metrics.read_text().replace("0.6", "0.9"))
    with pytest.raises(ChangedOutputError, match=r"metrics\.json is sha256:"):
        claim(run_uri, reference, manifest, "click auc")
    assert not (tmp_path / "promoted").exists()
