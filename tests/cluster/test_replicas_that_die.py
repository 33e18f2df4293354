"""A replica or a launcher that dies: the step fails with the cause, and its next try goes on from the checkpoint."""

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow.dataset as ds
import pytest
from api_server import JOBS, PODS, Api
from player import Ended, Player
from waiting import eventually

from thaw.components import runs, storage
from thaw.components.checkpoint_folder import newest_complete
from thaw.components.config import RunConfig, to_parameter

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]

STAGE = "train-cotrain"
NUM_ROWS = 1200
SHORT = (
    "data.window.num_days=2",
    "backbone={pretrain: {num_days: 2, num_epochs: 1}}",
    "recipe.policies=[cotrain]",
    "training.global_batch_size=4",
    "training.checkpoint_every_steps=25",
    "training.row_ledger=true",
)
"""Two days of one epoch, in 300 steps."""


@pytest.fixture(scope="module")
def ready(play: Callable[[str, RunConfig], Player], settings: Callable[..., RunConfig]) -> Player:
    """A run whose next step is to train."""
    player = play("ready", settings(*SHORT))
    player.run("select-window", "prepare-backbone")
    return player


class Training:
    """The training stage of a run of its own, on what the other run has made ready."""

    def __init__(self, ready: Player, settings: Callable[..., RunConfig], root: str, run_id: str):
        self._ready, self._settings = ready, settings
        self._run_uri = runs.create_run(root, run_id, settings(*SHORT))
        self.uri = f"{self._run_uri}/{STAGE}"

    def start(self, *overrides: str) -> str:
        """Start the step; its pod."""
        config = to_parameter(self._settings(*SHORT, *overrides))
        return self._ready.start(STAGE, config=config, run_uri=self._run_uri)

    def finish(self, pod: str) -> Ended:
        """Wait for the step's end."""
        return self._ready.finish(STAGE, pod)

    def run_until_checkpoint(self, pod: str) -> None:
        """Wait for the first checkpoint of the first attempt."""
        checkpoints = f"{self.uri}/attempt-1/checkpoints"
        self._ready.run_until(STAGE, pod, lambda: newest_complete(checkpoints), "a checkpoint")

    def failure(self, attempt: int = 1) -> runs.Failure:
        """What is recorded of a failed attempt."""
        failure = runs.read_failure(f"{self.uri}/attempt-{attempt}")
        assert failure is not None
        return failure

    def job(self, attempt: int = 1) -> str:
        """The name of an attempt's job."""
        return storage.read_json(f"{self.uri}/attempt-{attempt}/job.json")["job"]

    def rows(self) -> list[int]:
        """The rows that two attempts trained; of the first, those before the second went on."""
        before, after = self._trained(1), self._trained(2)
        first_step = min(after)
        assert first_step > 0
        kept = [row for step, rows in before.items() if step < first_step for row in rows]
        return [*kept, *(row for rows in after.values() for row in rows)]

    def _trained(self, attempt: int) -> dict[int, list[int]]:
        """By step; those after an attempt's last checkpoint are in no ledger."""
        filesystem, path = storage.open_filesystem(f"{self.uri}/attempt-{attempt}/ledger")
        rows: dict[int, list[int]] = {}
        for row in ds.dataset(path, filesystem=filesystem).to_table().to_pylist():
            rows.setdefault(row["step"], []).append(row["request_id"])
        return rows


@pytest.fixture
def training(ready: Player, settings: Callable[..., RunConfig], root: str) -> Training:
    """Of a new run."""
    return Training(ready, settings, root, f"run-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def end(request: pytest.FixtureRequest, api: Api, cluster: str, kill: Callable[[str], None]) -> Callable[[str], None]:
    """Ends a replica, one way or another."""
    return {
        "its-rank-killed": kill,
        "deleted-by-force": lambda pod: api.delete(cluster, PODS, pod, grace_s=0),
        "deleted": lambda pod: api.delete(cluster, PODS, pod, grace_s=5),
    }[request.param]


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        ("its-rank-killed", "rank 1 (worker-0) was killed by signal 9"),
        ("deleted-by-force", "worker-0"),
        ("deleted", "worker-0"),
    ],
    ids=["its-rank-killed", "deleted-by-force", "deleted"],
    indirect=["end"],
)
def test_a_worker_that_dies_fails_the_step_and_the_next_try_trains_every_other_row(
    training: Training, end: Callable[[str], None], cause: str
) -> None:
    step = training.start()
    training.run_until_checkpoint(step)
    end(f"{training.job()}-worker-0")
    ended = training.finish(step)
    assert ended.exit_code == 1
    failure = training.failure()
    assert cause in failure.message and failure.message.splitlines()[-1] in ended.log
    assert f"PyTorchJob {training.job()} failed" in failure.message

    again = training.finish(training.start())
    assert again.exit_code == 0, again.log
    assert len(training.rows()) == len(set(training.rows())) == NUM_ROWS


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        (["cluster.memory=350Mi"], "OOMKilled"),
        (["cluster.node_selector={disk: of-diamond}", "cluster.start_timeout_s=3"], "Unschedulable"),
        (["cluster.image=localhost:1/none:1", "cluster.start_timeout_s=15"], "localhost:1/none:1"),
    ],
    ids=["out-of-memory", "unschedulable", "no-image"],
)
def test_a_replica_that_cannot_run_fails_the_step_with_the_words_of_kubernetes(
    real_nodes: None, training: Training, overrides: list[str], cause: str
) -> None:
    ended = training.finish(training.start(*overrides))
    assert ended.exit_code == 1
    failure: Any = training.failure()
    assert cause in failure.message and failure.message.splitlines()[-1] in ended.log
    assert "master-0" in failure.message or "worker-0" in failure.message


# https://github.com/kubeflow/pipelines/issues/408
def test_a_step_whose_pod_is_deleted_leaves_neither_job_nor_replica(training: Training, api: Api, cluster: str) -> None:
    step = training.start()
    training.run_until_checkpoint(step)
    job = training.job()
    api.delete(cluster, PODS, step, grace_s=10)
    eventually(lambda: api.get(cluster, JOBS, job) is None, "the job's end")
    replicas = f"training.kubeflow.org/job-name={job}"
    eventually(lambda: not api.list(cluster, PODS, labelSelector=replicas), "the replicas' end")


def test_a_job_whose_launcher_does_not_come_back_ends_itself(
    training: Training, api: Api, cluster: str, kill: Callable[[str], None]
) -> None:
    overrides = ("cluster.lease_timeout_s=5", "training.global_batch_size=2", "training.checkpoint_every_steps=10")
    step = training.start(*overrides)
    training.run_until_checkpoint(step)
    kill(step)
    assert training.finish(step).exit_code == 137

    def has_failed() -> bool:
        job = api.get(cluster, JOBS, training.job())
        assert job is not None
        return job["status"]["conditions"][-1]["type"] == "Failed"

    eventually(has_failed, "the job's end")
    again = training.finish(training.start(*overrides))
    assert again.exit_code == 0, again.log
    assert "has not been renewed for 5 s" in training.failure().message
    assert len(training.rows()) == len(set(training.rows())) == NUM_ROWS
