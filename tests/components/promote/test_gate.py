import datetime
from pathlib import Path
from typing import Any

import pytest
from evaluated import evaluated

from thaw.components.config import load, to_parameter
from thaw.components.promote.claims import latest
from thaw.components.promote.step import run
from thaw.components.refused import RefusedError
from thaw.components.runs import read_manifest

DATE = datetime.date(2026, 3, 2)


class Artifact:
    def __init__(self, uri: str):
        self.uri = uri


def judge(root: Path, run_id: str, gate: str, date: datetime.date = DATE, **figures: float | None) -> dict[str, Any]:
    """What the step says of a run with these figures."""
    run_uri, reference, _ = evaluated(str(root), run_id, date, **figures)
    run(to_parameter(load("small", [f"promotion={gate}"])), run_uri, Artifact(reference.uri))
    return read_manifest(f"{run_uri}/promote/attempt-1")[0].figures


@pytest.mark.parametrize(
    ("gate", "figures", "why_not"),
    [
        ("{head: click, metric: auc, minimum: 0}", {"auc": 0.1}, None),
        ("{head: click, metric: auc, minimum: 0.7}", {"auc": 0.7}, None),
        ("{head: click, metric: auc, minimum: 0.7}", {"auc": 0.69}, "click auc is 0.69, below promotion.minimum 0.7"),
        ("{head: click, metric: ne, maximum: 0.9}", {"ne": 0.9}, None),
        ("{head: click, metric: ne, maximum: 0.9}", {"ne": 0.95}, "click ne is 0.95, above promotion.maximum 0.9"),
        ("{head: click, metric: auc, minimum: 0}", {"auc": None}, "click auc is undefined on the evaluation days"),
    ],
)
def test_a_run_passes_its_gate_or_says_why_not(
    tmp_path: Path, gate: str, figures: dict[str, float | None], why_not: str | None
) -> None:
    found = judge(tmp_path, "one", gate, **figures)
    assert found["promoted"] == (why_not is None)
    assert found.get("why_not") == why_not
    assert (latest(str(tmp_path)) is not None) == (why_not is None)


@pytest.mark.parametrize(
    ("metric", "before", "now", "passes"),
    [
        ("auc", 0.75, 0.74, True),
        ("auc", 0.75, 0.73, False),
        ("auc", 0.7125, 0.7, True),  # In floats the drop is 0.01250000000000007.
        ("auc", 0.7125, 0.699999, False),
        ("ne", 0.9, 0.91, True),
        ("ne", 0.9, 0.92, False),
        ("ne", 0.7, 0.7125, True),
    ],
)
def test_a_drop_is_measured_against_the_promoted_run_of_the_date_before(
    tmp_path: Path, metric: str, before: float, now: float, passes: bool
) -> None:
    gate = f"{{head: click, metric: {metric}, max_drop: 0.0125}}"
    assert judge(tmp_path, "yesterday", gate, DATE - datetime.timedelta(1), **{metric: before})["promoted"]
    # A later date than the run's own says nothing of it.
    assert judge(tmp_path, "tomorrow", gate, DATE + datetime.timedelta(1), **{metric: before})["promoted"]
    found = judge(tmp_path, "today", gate, **{metric: now})
    assert found["promoted"] == passes
    assert passes or f"than {before} of run yesterday, promoted for 2026-03-01" in found["why_not"]


def test_of_a_date_that_is_claimed_the_step_says_by_whom_and_does_not_fail(tmp_path: Path) -> None:
    gate = "{head: click, metric: auc, minimum: 0}"
    assert judge(tmp_path, "one", gate)["promoted"]
    found = judge(tmp_path, "two", gate, auc=0.99)
    assert not found["promoted"] and "claimed by run one" in found["why_not"]


def test_a_step_that_is_started_twice_has_one_word(tmp_path: Path) -> None:
    config = to_parameter(load("small", ["promotion={head: click, metric: auc, minimum: 0}"]))
    run_uri, reference, _ = evaluated(str(tmp_path), "one", DATE)
    for _ in range(2):
        run(config, run_uri, Artifact(reference.uri))
    assert [path.name for path in Path(run_uri, "promote").iterdir()] == ["attempt-1"]


def test_a_step_that_died_between_claim_and_manifest_finds_its_own_claim(tmp_path: Path) -> None:
    config = to_parameter(load("small", ["promotion={head: click, metric: auc, minimum: 0}"]))
    run_uri, reference, _ = evaluated(str(tmp_path), "one", DATE)
    run(config, run_uri, Artifact(reference.uri))
    Path(run_uri, "promote/attempt-1/manifest.json").unlink()
    run(config, run_uri, Artifact(reference.uri))
    assert read_manifest(f"{run_uri}/promote/attempt-2")[0].figures["promoted"]


def test_without_a_gate_the_step_is_refused(tmp_path: Path) -> None:
    run_uri, reference, _ = evaluated(str(tmp_path), "one", DATE)
    with pytest.raises(RefusedError, match="promotion is not set"):
        run(to_parameter(load("small")), run_uri, Artifact(reference.uri))


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (
            "{head: clicks, metric: auc, minimum: 0.7}",
            "promotion.head is 'clicks', and the heads are click, save, hide",
        ),
        (
            "{head: click, metric: ne, minimum: 0.5}",
            r"promotion.minimum: of ne less is better; give promotion\.maximum",
        ),
        ("{head: click, metric: auc, maximum: 1}", "promotion.maximum: of auc more is better"),
        ("{head: click, metric: accuracy}", "promotion.metric"),
        ("{head: click, metric: auc, max_drop: -1}", "promotion.max_drop"),
        ("{head: click, metric: auc}", r"auc has no bound, and every run would pass; give promotion\.minimum or"),
        ("{head: click, metric: ne}", r"ne has no bound, and every run would pass; give promotion\.maximum or"),
        ("{head: click, metric: auc, minimum: 70}", r"promotion\.minimum is 70, and auc is between 0 and 1"),
        ("{head: click, metric: hit, minimum: -0.1}", r"promotion\.minimum is -0\.1, and hit is between 0 and 1"),
        ("{head: click, metric: log_loss, maximum: -1}", r"promotion\.maximum is -1, and log_loss is at least 0"),
    ],
)
def test_a_gate_that_means_nothing_is_refused_at_the_door(gate: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        load("small", [f"promotion={gate}"])
