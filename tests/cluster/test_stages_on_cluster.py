"""A whole run of the compiled pipeline: steps are pods under the shipped rights, training stages are PyTorchJobs."""

from collections.abc import Callable

import pytest
from api_server import JOBS, Api
from player import Player

from thaw.components import runs, storage
from thaw.components.config import RunConfig

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),
]


LAUNCHING = ("prepare-backbone", "train-frozen", "train-cotrain", "evaluate")
"""The stages that have a PyTorchJob."""


@pytest.fixture(scope="module")
def whole(play: Callable[[str, RunConfig], Player], settings: Callable[..., RunConfig]) -> Player:
    """A run of all five stages."""
    player = play("whole", settings())
    player.run(*player.order())
    return player


def jobs_of(api: Api, namespace: str, run_id: str) -> dict[str, dict]:
    """All PyTorchJobs that a run has ever made, by stage: those that have ended stay for a day."""
    found = api.list(namespace, JOBS, labelSelector=f"thaw/run={run_id}")
    return {job["metadata"]["labels"]["thaw/stage"]: job for job in found}


def test_a_whole_run_ends_with_a_report(whole: Player, root: str) -> None:
    status = runs.run_status(f"{root}/runs/whole")
    assert {stage.stage: stage.state for stage in status.stages} == dict.fromkeys(
        ("select-window", *LAUNCHING), "committed"
    )
    assert "<svg" in storage.read_bytes(f"{root}/runs/whole/evaluate/attempt-1/report.html").decode()


def test_each_training_stage_is_one_job_of_two_replicas_that_succeeded(
    whole: Player, api: Api, cluster: str, root: str
) -> None:
    jobs = jobs_of(api, cluster, "whole")
    assert jobs.keys() == set(LAUNCHING)
    for stage, job in jobs.items():
        launched = storage.read_json(f"{root}/runs/whole/{stage}/attempt-1/launched.json")
        assert launched == {"job": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        assert job["status"]["conditions"][-1]["type"] == "Succeeded"
        assert job["status"]["replicaStatuses"].keys() == {"Master", "Worker"}
        (owner,) = job["metadata"]["ownerReferences"]
        assert owner["kind"] == "Pod" and owner["name"].startswith(f"{stage}-1-")


# https://github.com/kubeflow/pipelines/issues/677
def test_a_step_whose_launcher_is_killed_takes_its_job_up_when_it_is_started_again(
    whole: Player, api: Api, cluster: str, root: str, settings: Callable[..., RunConfig], kill: Callable[[str], None]
) -> None:
    run_uri = runs.create_run(root, "taken-up", settings())
    first = whole.start("train-cotrain", run_uri=run_uri)
    whole.run_until("train-cotrain", first, lambda: '"progress"' in whole.log(first), "progress")
    (before,) = jobs_of(api, cluster, "taken-up").values()
    kill(first)
    assert whole.finish("train-cotrain", first).exit_code == 137
    second = whole.start("train-cotrain", run_uri=run_uri)
    ended = whole.finish("train-cotrain", second)
    assert ended.exit_code == 0, ended.log
    assert '"status": "taken up"' in ended.log
    (job,) = api.list(cluster, JOBS, labelSelector="thaw/run=taken-up")
    assert job["metadata"]["uid"] == before["metadata"]["uid"]
    assert [owner["name"] for owner in job["metadata"]["ownerReferences"]] == [second]
    assert storage.list_dirs(f"{run_uri}/train-cotrain") == ["attempt-1"]
    undisturbed, taken_up = (
        runs.read_manifest(f"{root}/runs/{run_id}/train-cotrain/attempt-1")[0].figures
        for run_id in ("whole", "taken-up")
    )
    for figure in ("checksums_before", "checksums_after", "num_rows", "loss_curve"):
        assert taken_up[figure] == undisturbed[figure]


def test_kubectl_shows_state_labels_and_age(whole: Player, kubectl: Callable[..., str]) -> None:
    table = kubectl("get", "pytorchjobs", "-L", "thaw/run,thaw/stage,thaw/attempt", "-l", "thaw/run=whole")
    header, *rows = (line.split() for line in table.splitlines())
    assert header == ["NAME", "STATE", "AGE", "RUN", "STAGE", "ATTEMPT"]
    assert {stage: (state, run, attempt) for _, state, _, run, stage, attempt in rows} == dict.fromkeys(
        LAUNCHING, ("Succeeded", "whole", "1")
    )
