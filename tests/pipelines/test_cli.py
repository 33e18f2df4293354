import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from thaw.components import runs
from thaw.components.config import load
from thaw.components.refused import RefusedError
from thaw.pipelines.cli import main


def thaw(*arguments):
    return CliRunner().invoke(main, list(arguments))


@pytest.mark.parametrize("arguments", [["--help"], ["compile"], ["run", "--dry-run"], ["runs"]])
def test_torch_is_not_imported(arguments, tmp_path):
    code = (
        "import sys\nfrom thaw.pipelines.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'torchrec'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--set", "training.seed=1"], "training.seed: no such key"),
        (["run", "--date", "2026-02-30"], "2026-02-30"),
        (["run", "--date", "[[CurrentTime]]"], "[[CurrentTime]]"),
        (["run", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["run", "--config", "a.yaml", "--preset", "small"], "not both"),
        (["why", "no-such-run"], "no-such-run"),
        (["run", "--run-id", "", "--preset", "small"], "run id ''"),
        (["run", "--run-id", "a/b", "--preset", "small"], "run id 'a/b'"),
        (["why", "r/"], "run id 'r/'"),
        (["diff", "../r", "r"], "run id '../r'"),
        (["promote", "r/"], "run id 'r/'"),
        (["rerun", "--run", "r/evaluate", "--stage", "evaluate"], "run id 'r/evaluate'"),
        (["publish-backbone", "r/", "--prefix-uri", "backbones"], "run id 'r/'"),
        (["publish-backbone", "r", "--prefix-uri", ""], "--prefix-uri is empty"),
        (["runs", "--root", ""], "--root is empty"),
        (["run", "--root", " ", "--preset", "small"], "--root is empty"),
        (
            ["run", "--set", "backbone.publish_prefix_uri=''"],
            "backbone.publish_prefix_uri: String should have at least",
        ),
        (["run", "--root", "memory://x", "--preset", "small"], "memory://x"),
    ],
)
def test_a_fault_is_one_message_and_status_1(arguments, words, tmp_path):
    root = [] if "--root" in arguments else ["--root", str(tmp_path)]
    result = thaw(*arguments, *root)
    assert result.exit_code == 1
    assert words in result.output and "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_job_of_each_training_stage_and_writes_nothing(tmp_path):
    result = thaw("run", "--preset", "small", "--dry-run", "--root", str(tmp_path))
    jobs = list(yaml.safe_load_all(result.output))
    assert [job["metadata"]["labels"]["thaw/stage"] for job in jobs] == [
        "prepare-backbone",
        "train-frozen",
        "train-cotrain",
        "evaluate",
    ]
    assert {job["kind"] for job in jobs} == {"PyTorchJob"}
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_with_a_fetched_backbone_has_no_job_for_it(tmp_path):
    overrides = ["--set", "backbone={fetch: {uri: /models/one}}", "--set", "recipe.policies=[cotrain]"]
    result = thaw("run", "--preset", "small", "--dry-run", "--root", str(tmp_path), *overrides)
    stages = [job["metadata"]["labels"]["thaw/stage"] for job in yaml.safe_load_all(result.output)]
    assert stages == ["train-cotrain", "evaluate"]


def test_a_root_without_runs_says_so(tmp_path):
    result = thaw("runs", "--root", str(tmp_path))
    assert result.exit_code == 0 and "no runs" in result.output


def test_a_dry_run_needs_neither_the_gpu_nor_the_data_of_the_run(tmp_path):
    result = thaw("run", "--preset", "production", "--date", "2026-03-01", "--dry-run", "--root", str(tmp_path))
    jobs = list(yaml.safe_load_all(result.output))
    assert {job["spec"]["nprocPerNode"] for job in jobs} == {"8"}


def test_one_damaged_run_does_not_hide_the_others(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{")
    result = thaw("runs", "--root", str(tmp_path))
    assert result.exit_code == 0 and result.output.count(" damaged ") == 2


def test_why_says_in_the_same_words_what_was_refused(tmp_path):
    run_uri = runs.create_run(str(tmp_path), "r", load("small"))
    with pytest.raises(RefusedError), runs.refusing(run_uri, "select-window", "2026-02-30"):
        raise RefusedError("date: '2026-02-30' is no day of the calendar")
    result = thaw("why", "r", "--root", str(tmp_path))
    assert result.output.splitlines() == [
        "select-window was refused, and is not tried again; start a new run",
        "date: '2026-02-30' is no day of the calendar",
    ]


def test_a_backbone_without_a_place_to_publish_it_is_refused_before_anything_is_made(tmp_path):
    result = thaw("run", "--preset", "small", "--kind", "backbone", "--root", str(tmp_path))
    assert result.exit_code == 1 and "backbone.publish_prefix_uri is not set" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [["promoted"], ["diff", "one", "two"], ["promote", "one"], ["rerun", "--run", "one"]])
def test_what_is_asked_of_runs_that_are_not_there_is_one_message(verb, tmp_path):
    stage = ["--stage", "evaluate"] if verb[0] == "rerun" else []
    result = thaw(*verb, *stage, "--root", str(tmp_path))
    assert "Traceback" not in result.output
    assert ("no promoted runs" if verb[0] == "promoted" else f"no run at {tmp_path}/runs/one") in result.output
