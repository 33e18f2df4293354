import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import stage_job

from thaw.components import storage
from thaw.components.config import load
from thaw.components.jobs import JobSpec
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob
from thaw.components.launcher.launch import BACKENDS, Backend, launch
from thaw.components.lease import LEASE, Lease

WRITES_ITS_RESULT = """
import json, os, pathlib, sys
job = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    print("the Master's line")
    (job.parent / "result.json").write_text(json.dumps({"kind": json.loads(job.read_text())["kind"]}))
"""


@pytest.fixture
def ranks_run(script: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the trainer's place."""
    return lambda source: monkeypatch.setattr(pytorchjob, "COMMAND", tuple(script(source)))


def test_a_job_gives_the_figures_that_its_ranks_wrote(ranks_run: Callable[[str], None], tmp_path: Path) -> None:
    ranks_run(WRITES_ITS_RESULT)
    output = tmp_path / "attempt-1"
    job = stage_job(load("small"), output_uri=str(output))
    lines: list[str] = []
    assert launch(job, "local", lines.append) == {"kind": "train"}
    assert lines == ["the Master's line"]
    assert JobSpec.model_validate(json.loads((output / "job.json").read_text()), strict=False) == job.spec
    assert json.loads((output / "pytorchjob.json").read_text()) == pytorchjob.render(job)
    assert sorted(path.name for path in (output / "logs").iterdir()) == ["master-0.log", "worker-0.log"]


def test_a_job_with_a_lease_has_it_renewed_while_its_backend_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found: list[Lease] = []

    def run(job: TrainingJob, manifest: dict[str, Any], on_line: Callable[[str], None]) -> None:
        uri = str(tmp_path / LEASE)
        while not found or found[-1].renewal < 1:
            found.append(Lease.model_validate_json(storage.read_bytes(uri)))
        storage.write_json(str(tmp_path / "result.json"), {})

    monkeypatch.setitem(BACKENDS, "elsewhere", Backend(run, jobs_outlive_launcher=True))
    launch(stage_job(load("small"), output_uri=str(tmp_path), lease_timeout_s=0.5), "elsewhere")
    assert found[0].renewal == 0
    assert {lease.timeout_s for lease in found} == {0.5}


# https://github.com/kubeflow/pipelines/issues/8051
def test_a_job_that_ends_well_without_its_result_has_failed(ranks_run: Callable[[str], None], tmp_path: Path) -> None:
    ranks_run("")
    with pytest.raises(JobFailed, match=r"result\.json is not there"):
        launch(stage_job(load("small"), output_uri=str(tmp_path)), "local")


def test_an_attempts_folder_is_launched_from_once(ranks_run: Callable[[str], None], tmp_path: Path) -> None:
    ranks_run(WRITES_ITS_RESULT)
    job = stage_job(load("small"), output_uri=str(tmp_path))
    launch(job, "local")
    with pytest.raises(FileExistsError, match=r"job\.json"):
        launch(job, "local")


def test_a_backend_that_is_not_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"backend 'cloud': .*local, kubernetes"):
        launch(stage_job(load("small"), output_uri=str(tmp_path)), "cloud")
    assert not storage.list_files(str(tmp_path))
