"""The command as a user runs it: real processes, two ranks, a log that is small enough for seconds."""

import json
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from thaw.components import runs
from thaw.components.config import load
from thaw.pipelines.local import PipelineError, run_pipeline
from thaw.pipelines.progress import Progress

pytestmark = pytest.mark.timeout(600)

THAW = [str(Path(sys.executable).with_name("thaw"))]
TINY = (
    "data.window.num_days=2",
    "backbone={pretrain: {num_days: 2, num_epochs: 1}}",
    "evaluation.num_train_requests=200",
)


def run(root, *arguments, overrides=TINY, **options):
    sets = [part for override in overrides for part in ("--set", override)]
    command = [*THAW, "run", "--preset", "small", "--root", str(root), "--run-id", "r", *sets, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, **options)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root whose path holds what kfp.local would rewrite, and that has the data set."""
    root = tmp_path_factory.mktemp("python3 root")
    subprocess.run([*THAW, "data", "demo", "--size", "S", "--root", str(root)], check=True)
    return root


@pytest.fixture(scope="module")
def finished(root):
    return run(root)


def test_the_whole_pipeline_ends_with_a_table_and_a_report(root, finished):
    assert finished.returncode == 0, finished.stdout + finished.stderr
    report = Path(finished.stdout.splitlines()[-1].removeprefix("report: "))
    assert report.name == "report.html" and "<svg" in report.read_text()
    for head in ("click", "save", "hide"):
        assert any(line.startswith(head) for line in finished.stdout.splitlines())


def test_every_stage_is_committed_and_names_its_inputs(root, finished):
    status = runs.run_status(f"{root}/runs/r")
    assert [stage.state for stage in status.stages] == ["committed"] * 5
    by_name = {stage.stage: stage.manifest for stage in status.stages}
    for name, inputs in {
        "prepare-backbone": {"window": "select-window"},
        "train-frozen": {"window": "select-window", "parent": "prepare-backbone"},
        "train-cotrain": {"window": "select-window", "parent": "train-frozen"},
        "evaluate": {"window": "select-window", "model": "train-cotrain"},
    }.items():
        for key, stage in inputs.items():
            reference = by_name[name].inputs[key]
            assert runs.read_manifest(reference.uri)[1] == reference.digest
            assert reference.uri.endswith(f"/{stage}/attempt-1")
    frozen = by_name["train-frozen"].figures
    assert frozen["checksums_before"] == frozen["checksums_after"]
    assert by_name["train-cotrain"].figures["checksums_before"] == frozen["checksums_after"]
    assert by_name["train-cotrain"].figures["checksums_after"] != frozen["checksums_after"]


def test_a_run_is_never_replaced(root, finished):
    before = {path: path.stat().st_mtime_ns for path in (root / "runs").rglob("*") if path.is_file()}
    again = run(root)
    assert again.returncode == 1 and "run id 'r' is taken" in again.stderr
    assert before == {path: path.stat().st_mtime_ns for path in (root / "runs").rglob("*") if path.is_file()}


def test_the_runs_are_listed_with_their_reports(root, finished):
    listed = subprocess.run([*THAW, "runs", "--root", str(root)], capture_output=True, text=True, check=True).stdout
    assert "committed" in listed and "evaluate/attempt-1/report.html" in listed


def wait_for_rank(command, rank, stage):
    """The process of a rank at work in a stage, found among the command's descendants."""
    while command.poll() is None:
        for process in psutil.Process(command.pid).children(recursive=True):
            try:
                environment = process.environ()
                is_rank = environment.get("RANK") == str(rank) and "TORCHELASTIC_RUN_ID" in environment
                if is_rank and any(f"/{stage}/" in word for word in process.cmdline()):
                    return process
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        time.sleep(0.05)
    raise AssertionError(f"the command ended with {command.returncode}: {command.communicate()}")


def start(root, run_id):
    sets = [part for override in TINY for part in ("--set", override)]
    command = [*THAW, "run", "--preset", "small", "--root", str(root), "--run-id", run_id, *sets]
    # As from a terminal: what a shell starts in the background ignores the interrupt.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)


@pytest.mark.parametrize(("number", "cause"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_rank_that_dies_or_raises_ends_the_run_with_its_name_and_later_stages_do_not_start(root, number, cause):
    run_id = f"rank-1-ended-by-{number}"
    command = start(root, run_id)
    rank = wait_for_rank(command, 1, "train-cotrain")
    log = root / f"runs/{run_id}/train-cotrain/attempt-1/logs/master-0.log"
    while '"progress"' not in log.read_text() and command.poll() is None:
        time.sleep(0.02)
    family = psutil.Process(command.pid).children(recursive=True)
    rank.send_signal(number)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "worker-0" in stderr and cause in stderr.splitlines()[-1]
    states = {stage.stage: stage.state for stage in runs.run_status(f"{root}/runs/{run_id}").stages}
    assert states["train-frozen"] == "committed"
    assert states["train-cotrain"] == "failed"
    assert states["evaluate"] == "absent"
    assert not psutil.wait_procs(family, timeout=60)[1]
    why = subprocess.run([*THAW, "why", run_id, "--root", str(root)], capture_output=True, text=True)
    assert "worker-0" in why.stdout and cause in why.stdout
    assert (root / f"runs/{run_id}/train-frozen/attempt-1/model/complete.json").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_no_process_outlives_the_command(root, number):
    command = start(root, f"ended-by-{number}")
    wait_for_rank(command, 0, "prepare-backbone")
    family = psutil.Process(command.pid).children(recursive=True)
    assert len(family) >= 6  # driver, shell, step, two agents, ranks
    command.send_signal(number)
    command.communicate(timeout=100)
    assert command.returncode != 0
    assert not psutil.wait_procs(family, timeout=60)[1]
    states = [stage.state for stage in runs.run_status(f"{root}/runs/ended-by-{number}").stages]
    assert states[0] == "committed" and states[1] in ("failed", "died") and set(states[2:]) == {"absent"}


def test_a_renamed_label_column_fails_the_run_in_its_first_step(root, tmp_path):
    failed = run(
        tmp_path,
        overrides=(
            *TINY,
            f"data.uri={root}/data/demo-S-10-days-seed-0",
            "data.heads=[{name: click, column: clicked, engagement: true}]",
        ),
    )
    assert failed.returncode == 1
    assert "clicked" in failed.stderr and "part-0.parquet" in failed.stderr
    states = [stage.state for stage in runs.run_status(f"{tmp_path}/runs/r").stages]
    assert states == ["failed", "absent", "absent", "absent", "absent"]


def test_a_file_where_the_root_should_be_is_named(tmp_path):
    (tmp_path / "root").write_text("kept")
    failed = run(tmp_path / "root")
    assert failed.returncode == 1 and str(tmp_path / "root") in failed.stderr and "Traceback" not in failed.stderr
    assert (tmp_path / "root").read_text() == "kept"


def test_a_truncated_file_fails_the_run_with_its_name_and_size(root, tmp_path):
    data = tmp_path / "data"
    subprocess.run(["cp", "-r", f"{root}/data/demo-S-10-days-seed-0", data], check=True)
    victim = data / "requests/day=2026-03-01/part-0.parquet"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    failed = run(tmp_path, overrides=(*TINY, f"data.uri={data}"))
    assert failed.returncode == 1
    assert str(victim) in failed.stderr and str(len(whole) // 2) in failed.stderr


def test_the_saved_log_and_the_record_tell_what_was_run(root, finished):
    record = json.loads((root / "runs/r/run.json").read_text())
    assert record["extra"]["date"] == "2026-03-02" and record["config"]["name"] == "small"
    assert "finished with status" in (root / "runs/r/log.txt").read_text()
    assert pq.read_table(root / "runs/r/evaluate/attempt-1/predictions/evaluation").num_rows == 16000
    assert {path.name for path in (root / "runs/r/train-frozen/attempt-1/logs").iterdir()} == {
        "master-0.log",
        "worker-0.log",
    }


def test_the_cause_is_told_though_the_driver_was_killed(root):
    command = start(root, "driver-killed")
    wait_for_rank(command, 0, "prepare-backbone")
    (driver,) = psutil.Process(command.pid).children()
    driver.kill()
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 1
    assert stderr.startswith("Error: prepare-backbone failed") and "was told to end" in stderr


def test_a_failed_run_raises_in_python_as_it_exits_on_the_command_line(root, tmp_path):
    data = tmp_path / "data"
    subprocess.run(["cp", "-r", f"{root}/data/demo-S-10-days-seed-0", data], check=True)
    (data / "requests/day=2026-03-01/part-0.parquet").write_bytes(b"")
    config = load("small", [*TINY, f"data.uri={data}"])
    run_uri = runs.create_run(str(tmp_path), "r", config)
    stages = ("select-window", "prepare-backbone", "train-frozen", "train-cotrain", "evaluate")
    with pytest.raises(PipelineError), Progress(stages, Console()) as progress:
        run_pipeline(config, run_uri, {"date": "2026-03-02"}, progress)
    assert runs.run_status(run_uri).state == "failed"


def test_two_runs_at_once_keep_apart_though_the_usual_ports_are_taken(root, tmp_path):
    sets = [
        part
        for override in (
            *TINY,
            "recipe.policies=[cotrain]",
            "training.row_ledger=true",
            f"data.uri={root}/data/demo-S-10-days-seed-0",
        )
        for part in ("--set", override)
    ]
    with ExitStack() as stack:
        for port in (29500, 29400):
            with suppress(OSError):  # somebody else's listener does as well
                stack.enter_context(socket.create_server(("", port)))
        both = [
            subprocess.Popen(
                [*THAW, "run", "--preset", "small", "--root", str(tmp_path), "--run-id", run_id, *sets],
                stdout=subprocess.DEVNULL,
            )
            for run_id in ("one", "two")
        ]
        assert [process.wait(timeout=550) for process in both] == [0, 0]
    for run_id in ("one", "two"):
        attempt = tmp_path / f"runs/{run_id}/train-cotrain/attempt-1"
        trained = pq.read_table(attempt / "ledger")["request_id"].to_pylist()
        assert len(trained) == len(set(trained)) == 1200
        assert json.loads((attempt / "job.json").read_text())["run_id"] == run_id
