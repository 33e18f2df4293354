"""The stand-in for the training operator, against what the operator 1.9 does.

No pod of these jobs is ever scheduled but in the last tests: a test plays its kubelet, and has the operator look.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from api_server import JOBS, PODS, SERVICES, Api, path
from job_status import now, seconds_since
from namespaces import new_namespace
from training_operator import TrainingOperator, runs_in
from waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("ignore:Unverified HTTPS request")]

TRAINING = "training.kubeflow.org"


def replica(restart_policy: str | None = "Never", replicas: int = 1, **pod: Any) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "none", "env": [{"name": "RANK", "value": "of the user"}]}
    spec = {"schedulerName": "nobody", "containers": [container, {"name": "other", "image": "none"}], **pod}
    policy = {"restartPolicy": restart_policy} if restart_policy else {}
    return {"replicas": replicas, **policy, "template": {"metadata": {"labels": {"mine": "yes"}}, "spec": spec}}


class Played:
    """A PyTorchJob whose pods do what the test says."""

    def __init__(self, api: Api, operator: TrainingOperator, namespace: str, name: str, spec: dict[str, Any]):
        self.api, self.operator, self.namespace, self.name = api, operator, namespace, name
        body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}
        self.uid = api.create(namespace, JOBS, body)["metadata"]["uid"]

    def look(self, times: int = 4) -> "Played":
        """Have the operator act until it has nothing to do any more, or only so often."""
        for _ in range(times):
            self.operator.look()
        return self

    def set(
        self, replica: str, phase: str, exit_code: int | None = None, restarts: int = 0, looks: int = 4
    ) -> "Played":
        """Have a pod come into a phase, and the operator see it."""
        state = {"running": {"startedAt": now()}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
        container = {"name": "pytorch", "image": "", "imageID": "", "ready": False, "restartCount": restarts}
        status = {"phase": phase, "containerStatuses": [{**container, "state": state}]}
        self.api.request("PATCH", path(self.namespace, PODS, f"{self.name}-{replica}", "status"), {"status": status})
        return self.look(looks)

    def change(self, **run_policy: Any) -> "Played":
        """Change the job's run policy."""
        body = {"spec": {"runPolicy": run_policy}}
        self.api.request("PATCH", path(self.namespace, JOBS, self.name), body)
        return self.look()

    @property
    def status(self) -> dict[str, Any] | None:
        return (self.api.get(self.namespace, JOBS, self.name) or {}).get("status")

    @property
    def conditions(self) -> list[tuple[str, str, str]]:
        return [(each["type"], each["status"], each["reason"]) for each in (self.status or {}).get("conditions", ())]

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        return self._own(PODS)

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        return self._own(SERVICES)

    def _own(self, plural: str) -> dict[str, dict[str, Any]]:
        found = self.api.list(self.namespace, plural, labelSelector=f"{TRAINING}/job-name={self.name}")
        return {each["metadata"]["name"].removeprefix(f"{self.name}-"): each for each in found}


@pytest.fixture(scope="module")
def namespace(api: Api, has_nodes: bool) -> Iterator[str]:
    with new_namespace(api, has_nodes) as name:
        yield name


@pytest.fixture(scope="module")
def own_operator(api: Api, namespace: str) -> TrainingOperator:
    """The stand-in for the namespace, not at work by itself: `look` has it act."""
    if real := runs_in(api):
        pytest.skip(f"a real training operator runs: {real}")
    return TrainingOperator(api, namespace)


@pytest.fixture
def play(api: Api, namespace: str, own_operator: TrainingOperator) -> Iterator[Callable[..., Played]]:
    """Makes a job of a Master and a Worker, or of other replicas."""
    made: list[Played] = []

    def make(replicas: dict[str, Any] | None = None, name: str | None = None, **spec: Any) -> Played:
        replicas = replicas or {"Master": replica(), "Worker": replica()}
        job_spec = {"nprocPerNode": "1", "pytorchReplicaSpecs": replicas, **spec}
        made.append(Played(api, own_operator, namespace, name or f"j{len(made)}", job_spec))
        return made[-1]

    yield make
    for job in made:
        api.delete(namespace, JOBS, job.name)
        for name in job.pods:
            api.delete(namespace, PODS, f"{job.name}-{name}", grace_s=0)
        for name in job.services:
            api.delete(namespace, SERVICES, f"{job.name}-{name}")


def variables(pod: dict[str, Any], container: int = 0) -> dict[str, str]:
    """The last of equal names wins, as in a container."""
    return {each["name"]: each["value"] for each in pod["spec"]["containers"][container]["env"]}


def test_a_job_has_no_status_until_the_operator_has_seen_it(play):
    job = play()
    assert job.status is None
    job.look()
    assert job.conditions == [("Created", "True", "PyTorchJobCreated")]
    assert "startTime" in job.status


def test_pods_and_headless_services_are_named_and_labelled_after_the_job(play):
    job = play({"Master": replica(), "Worker": replica(replicas=2)}).look()
    assert job.pods.keys() == job.services.keys() == {"master-0", "worker-0", "worker-1"}
    expected = {f"{TRAINING}/operator-name": "pytorchjob-controller", f"{TRAINING}/job-name": job.name}
    expected |= {f"{TRAINING}/replica-type": "worker", f"{TRAINING}/replica-index": "1"}
    worker, service = job.pods["worker-1"], job.services["worker-1"]
    assert worker["metadata"]["labels"] == {**expected, "mine": "yes"}
    assert service["spec"]["selector"] == service["metadata"]["labels"] == expected
    assert service["spec"]["clusterIP"] == "None"
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("pytorchjob-port", 23456)]
    assert job.pods["master-0"]["metadata"]["labels"][f"{TRAINING}/job-role"] == "master"
    for owned in (worker, service):
        (owner,) = owned["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (job.uid, True)


def test_every_container_gets_the_variables_of_torchrun_and_they_win(play):
    master = replica()
    master["template"]["spec"]["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": 29500}]
    job = play({"Master": master, "Worker": replica(replicas=2)}, nprocPerNode="4").look()
    address = f"{job.name}-master-0"
    common = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "4", "PET_NNODES": "3", "WORLD_SIZE": "12"}
    common |= {"MASTER_ADDR": address, "PET_MASTER_ADDR": address, "MASTER_PORT": "29500", "PET_MASTER_PORT": "29500"}
    for name, node_rank in (("master-0", "0"), ("worker-0", "1"), ("worker-1", "2")):
        for container in range(2):
            assert variables(job.pods[name], container) == {**common, "RANK": node_rank, "PET_NODE_RANK": node_rank}


def test_the_world_size_is_that_of_the_nodes_where_the_processes_are_not_a_number(play):
    job = play(nprocPerNode="auto").look()
    assert variables(job.pods["worker-0"])["WORLD_SIZE"] == "2"
    assert variables(job.pods["worker-0"])["PET_NPROC_PER_NODE"] == "auto"


def test_workers_without_a_master_get_no_rank(play):
    job = play({"Worker": replica(replicas=2)}).look()
    expected = {"RANK": "of the user", "PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "1", "PET_NNODES": "2"}
    assert variables(job.pods["worker-1"]) == expected


def test_an_elastic_job_meets_at_its_first_worker(play):
    job = play({"Worker": replica(replicas=2)}, elasticPolicy={"maxRestarts": 3, "minReplicas": 1}).look()
    found = variables(job.pods["worker-1"])
    assert found["PET_RDZV_ENDPOINT"] == f"{job.name}-worker-0:23456"
    assert (found["PET_RDZV_BACKEND"], found["PET_NNODES"], found["PET_MAX_RESTARTS"]) == ("c10d", "1:2", "3")


@pytest.mark.parametrize(("policy", "of_the_pod"), [("Never", "Never"), ("ExitCode", "Never"), (None, "OnFailure")])
def test_the_restart_policy_of_the_replica_is_the_pods(play, policy, of_the_pod):
    job = play({"Master": replica(policy)}).look()
    assert job.pods["master-0"]["spec"]["restartPolicy"] == of_the_pod


def test_the_job_succeeds_with_its_master_though_a_worker_runs_or_has_failed(play):
    job = play({"Master": replica(), "Worker": replica("OnFailure", replicas=2)}).look().set("master-0", "Running")
    assert job.conditions[-1] == ("Running", "True", "PyTorchJobRunning")
    job.set("worker-0", "Running").set("master-0", "Succeeded", 0)
    assert job.conditions == [
        ("Created", "True", "PyTorchJobCreated"),
        ("Running", "False", "PyTorchJobRunning"),
        ("Succeeded", "True", "PyTorchJobSucceeded"),
    ]
    assert "completionTime" in job.status
    counts = job.status["replicaStatuses"]
    assert counts["Master"]["succeeded"] == counts["Worker"]["succeeded"] == 1  # the one that still ran is counted so


def test_workers_without_a_master_all_have_to_succeed(play):
    job = play({"Worker": replica(replicas=2)}).look().set("worker-0", "Succeeded", 0).set("worker-1", "Running")
    assert job.conditions[-1][:2] == ("Running", "True")
    assert job.set("worker-1", "Succeeded", 0).conditions[-1][:2] == ("Succeeded", "True")


def test_one_elastic_worker_that_succeeds_is_enough(play):
    job = play({"Worker": replica(replicas=2)}, elasticPolicy={}).look().set("worker-0", "Succeeded", 0)
    assert job.conditions[-1][:2] == ("Succeeded", "True")


def test_a_failed_pod_under_never_fails_the_job_and_nothing_changes_any_more(play):
    job = play().look().set("master-0", "Running").set("worker-0", "Failed", 1)
    failed = [("Created", "True", "PyTorchJobCreated"), ("Running", "False", "PyTorchJobRunning")]
    assert job.conditions == [*failed, ("Failed", "True", "PyTorchJobFailed")]
    assert "1 Worker replica(s) failed" in job.status["conditions"][-1]["message"]
    before = job.status
    assert job.set("master-0", "Succeeded", 0).status == before


@pytest.mark.parametrize(
    ("policy", "left"), [(None, {"master-0", "worker-0"}), ("Running", {"worker-0"}), ("All", set())]
)
def test_the_clean_up_policy_says_which_pods_of_a_finished_job_stay(play, policy, left):
    run_policy = {"cleanPodPolicy": policy} if policy else {}
    job = play(runPolicy=run_policy).look().set("master-0", "Running").set("worker-0", "Failed", 1)
    assert {name for name, pod in job.pods.items() if "deletionTimestamp" not in pod["metadata"]} == left
    assert left <= job.services.keys()


@pytest.mark.parametrize(
    ("policy", "exit_code", "condition"),
    [
        ("OnFailure", 1, "Restarting"),
        ("Always", 1, "Restarting"),
        ("ExitCode", 137, "Restarting"),
        ("ExitCode", 1, "Failed"),
    ],
)
def test_a_failed_pod_is_made_anew_or_fails_the_job_as_its_policy_says(play, policy, exit_code, condition):
    job = play({"Master": replica(policy), "Worker": replica(policy)}).look().set("master-0", "Running")
    before = job.pods["worker-0"]["metadata"]["uid"]
    job.set("worker-0", "Failed", exit_code, looks=1)
    assert job.conditions[-1] == (condition, "True", f"PyTorchJob{condition}")
    if condition == "Restarting":
        assert [kind for kind, _, _ in job.conditions] == ["Created", "Restarting"]
        assert job.look().pods["worker-0"]["metadata"]["uid"] != before
        # The Master has run all the while, so the job is running as soon as it is looked at again.
        assert [kind for kind, _, _ in job.conditions] == ["Created", "Running"]


def test_restarts_in_place_count_against_the_backoff_limit_and_only_those_of_running_pods(play):
    replicas = {"Master": replica("OnFailure"), "Worker": replica("OnFailure")}
    job = play(replicas, runPolicy={"backoffLimit": 2}).look()
    job.set("master-0", "Running", restarts=1).set("worker-0", "Pending", restarts=1)
    assert job.conditions[-1][:2] == ("Running", "True")
    job.set("worker-0", "Running", restarts=1)
    assert job.conditions[-1][:2] == ("Failed", "True")
    assert "backoff limit" in job.status["conditions"][-1]["message"]


def test_a_pod_removed_by_force_is_made_anew_and_the_job_goes_on(play, api, namespace):
    job = play().look().set("master-0", "Running").set("worker-0", "Running")
    before = job.pods["worker-0"]["metadata"]["uid"]
    api.delete(namespace, PODS, f"{job.name}-worker-0", grace_s=0)
    assert job.look().pods["worker-0"]["metadata"]["uid"] != before
    assert job.conditions[-1][:2] == ("Running", "True")


# https://github.com/kubeflow/trainer/issues/3358
def test_the_deadline_is_looked_at_only_when_something_happens(play):
    job = play(runPolicy={"activeDeadlineSeconds": 1}).look().set("master-0", "Running")
    eventually(lambda: seconds_since(job.status["startTime"]) > 1, "the deadline")
    assert job.look().conditions[-1][:2] == ("Running", "True")
    job.set("worker-0", "Running")
    assert job.conditions[-1][:2] == ("Failed", "True")
    assert "longer than specified deadline" in job.status["conditions"][-1]["message"]


def test_a_finished_job_is_deleted_after_its_time_to_live(play):
    job = play(runPolicy={"ttlSecondsAfterFinished": 1}).look().set("master-0", "Succeeded", 0)
    eventually(lambda: job.look().status is None, "the job's end")


def test_a_suspended_job_has_no_pods_and_starts_its_clock_anew(play):
    job = play(runPolicy={"suspend": True}).look()
    assert job.pods == {}
    assert job.conditions[-1] == ("Suspended", "True", "PyTorchJobSuspended")
    assert "startTime" not in job.status
    job.change(suspend=False).set("master-0", "Running")
    assert [each[:2] for each in job.conditions] == [("Created", "True"), ("Suspended", "False"), ("Running", "True")]
    assert ("Suspended", "False", "PyTorchJobResumed") in job.conditions
    job.change(suspend=True)
    assert ("Running", "False", "PyTorchJobSuspended") in job.conditions
    assert job.conditions[-1] == ("Suspended", "True", "PyTorchJobSuspended")


def test_a_job_that_the_webhook_refuses_fails_with_the_rule(play):
    broken = {"Master": replica(replicas=2), "Worker": replica()}
    broken["Worker"]["template"]["spec"]["containers"][0]["name"] = "trainer"
    job = play(broken).look()
    assert job.conditions[-1] == ("Failed", "True", "PyTorchJobFailedValidation")
    message = job.status["conditions"][-1]["message"]
    assert "Master.replicas is not 1" in message and "no container named pytorch" in message
    assert job.pods == {}


def test_a_job_managed_by_another_controller_is_left_alone(play):
    job = play(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}).look()
    assert job.status is None and job.pods == {}


def test_pods_that_the_namespace_has_no_room_for_are_told_in_an_event(play, api, namespace, has_nodes):
    if not has_nodes:
        pytest.skip("only an API server: no controller counts what a quota has left")
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/pods": "0"}}}
    api.create(namespace, "resourcequotas", quota)
    try:
        eventually(lambda: api.get(namespace, "resourcequotas", "none").get("status", {}).get("hard"), "the quota")
        job = play()
        with pytest.raises(Exception, match="exceeded quota"):
            job.look()
        events = api.list(namespace, "events", fieldSelector=f"involvedObject.uid={job.uid}")
        assert [event["reason"] for event in events] == ["FailedCreatePod"] and "exceeded quota" in events[0]["message"]
        assert job.status is None
    finally:
        api.delete(namespace, "resourcequotas", "none")
