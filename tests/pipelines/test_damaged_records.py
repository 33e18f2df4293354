"""What the verbs say where a record is not what it should be: one line that names it, and all others as ever."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from thaw.components import storage
from thaw.components.config import load
from thaw.components.runs import create_run, stage
from thaw.pipelines.cli import main

CONFIG = load("small")
VERBS = (
    ("why", "bad"),
    ("diff", "good", "bad"),
    ("promote", "bad"),
    ("rerun", "--run", "bad", "--stage", "evaluate"),
    ("publish-backbone", "bad", "--prefix-uri", "/backbones"),
)


def thaw(root: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--root", str(root)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "pydantic" not in result.output
    return result


def without_recipe(record: dict[str, Any]) -> None:
    del record["config"]["recipe"]


def without_config(record: dict[str, Any]) -> None:
    del record["config"]


def of_no_parent(record: dict[str, Any]) -> None:
    record["extra"]["parent"] = {"run": 1}


def of_no_kind(record: dict[str, Any]) -> None:
    record["extra"]["kind"] = "nope"


def of_no_date(record: dict[str, Any]) -> None:
    record["extra"]["date"] = 5


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (without_recipe, "config.recipe.policies is None, and no list of frozen, cotrain"),
        (without_config, "config: Field required"),
        (of_no_parent, "extra.parent: run: Input should be a valid string; stage: Field required"),
        (of_no_kind, "kind 'nope': give whole"),
        (of_no_date, "extra.date is 5, and no text"),
    ],
)
def test_a_damaged_record_of_a_run_is_one_line_and_hides_no_other_run(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], words: str
) -> None:
    create_run(str(tmp_path), "good", CONFIG)
    uri = storage.join(create_run(str(tmp_path), "bad", CONFIG), "run.json")
    record = storage.read_json(uri)
    damage(record)
    storage.write_json(uri, record)
    listed = thaw(tmp_path, "runs")
    assert listed.exit_code == 0 and "good" in listed.output
    (line,) = (line for line in listed.output.splitlines() if line.startswith("bad"))
    fault = f"{uri} is not the record of a run: {words}"
    assert "damaged" in line and listed.output.splitlines()[-1].startswith(fault)
    for verb in VERBS:
        said = thaw(tmp_path, *verb)
        assert said.exit_code == 1 and fault in said.output and len(said.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("manifest.json", b"{}", "manifest.json is not the manifest of a stage: stage: Field required; run_id: Field"),
        ("claim.json", b"[]", "claim.json is not the claim of an attempt: Input should be"),
    ],
)
def test_a_damaged_attempt_is_one_line_and_hides_no_other_run(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    create_run(str(tmp_path), "good", CONFIG)
    with stage(CONFIG, create_run(str(tmp_path), "bad", CONFIG), "evaluate") as current:
        current.commit()
    storage.write_bytes(storage.join(current.uri, name), content)
    listed = thaw(tmp_path, "runs").output
    assert any(line.startswith("good") for line in listed.splitlines()) and words in listed
    for verb in (("why", "bad"), ("diff", "bad", "good")):
        said = thaw(tmp_path, *verb)
        assert said.exit_code == 1 and words in said.output and len(said.output.splitlines()) == 1


def test_an_evaluation_that_names_no_report_hides_no_other_run(tmp_path: Path) -> None:
    create_run(str(tmp_path), "good", CONFIG)
    with stage(CONFIG, create_run(str(tmp_path), "bad", CONFIG), "evaluate") as current:
        storage.write_bytes(storage.join(current.uri, "metrics.json"), b"{}")
        current.commit(outputs={"metrics": "metrics.json"})
    assert thaw(tmp_path, "runs").exit_code == 0
    said = thaw(tmp_path, "diff", "bad", "good").output
    assert "metrics.json is not what an evaluation found: num_rows: Field required;" in said and "3 more" in said
    assert len(said.splitlines()) == 1
