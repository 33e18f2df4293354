"""A job of two ranks that trains, and whose launcher is killed: no process on this machine ties them together."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thaw.components import events, lease, storage
from thaw.components.launcher import local, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob

sys.path.append(str(Path(__file__).parents[1] / "trainer"))
from small_log import job, make_config, write_window

RENEWER = """
import signal, sys
from thaw.components import lease
with lease.renewed(sys.argv[1], float(sys.argv[2])):
    print("renewed", flush=True)
    signal.pause()
"""
TIMEOUT_S = 3.0


def test_a_job_whose_launcher_is_killed_in_mid_training_ends_itself_and_says_why(tmp_path: Path) -> None:
    write_window(tmp_path, request_rows=(20_000,))  # Thousands of steps: far more than the job is left the time for.
    config = make_config(tmp_path, "training.num_nodes=2", "cluster.deadline_s=240")
    spec = job(tmp_path, config, "train", "train-cotrain", policy="cotrain", lease_timeout_s=TIMEOUT_S)
    training = TrainingJob(config, spec, attempt=1)
    storage.create_json(training.spec_uri, spec.model_dump(mode="json"))
    lease_uri = storage.join(spec.output_uri, lease.LEASE)

    with subprocess.Popen(
        [sys.executable, "-c", RENEWER, lease_uri, str(TIMEOUT_S)], stdout=subprocess.PIPE
    ) as renewer:
        assert renewer.stdout is not None and renewer.stdout.readline() == b"renewed\n"

        def kill_once_it_trains(line: str) -> None:
            event: dict[str, Any] = events.parse(line) or {}
            if event.get("event") == "progress":
                renewer.kill()

        with pytest.raises(JobFailed) as failure:
            local.run(pytorchjob.render(training), str(tmp_path / "logs"), kill_once_it_trains)
        renewer.kill()
    assert (failure.value.replica, failure.value.rank, failure.value.exit_code) == ("master-0", 0, 1)
    assert f"LeaseLostError: the lease {lease_uri} has not been renewed for 3 s" in str(failure.value)
    assert not (tmp_path / "train-cotrain" / "result.json").exists()
