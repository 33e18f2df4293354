"""A job of hours outlives the faults of its API server, and what no waiting mends ends at once."""

import re
from typing import Any

import pytest
from scripted_api import BOTH_RUN, Fault, JobState, ScriptedApi, condition

from thaw.components.launcher import pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.kubernetes import client
from thaw.components.launcher.kubernetes.client import Api, ApiError

RUNNING = JobState(condition("Created", "Running"), BOTH_RUN)
SUCCEEDED = JobState(condition("Created", "Running", "Succeeded"))
LOOK = "/pytorchjobs/"


@pytest.fixture
def patient(launcher: Any) -> Any:
    return launcher.with_job("cluster.deadline_s=100000")


@pytest.fixture(autouse=True)
def short_request_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", (5.0, 1.0))


# https://github.com/kubernetes-client/python/issues/728
@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET", LOOK, "reset"),
        Fault("GET", LOOK, "cut"),
        Fault("GET", LOOK, "hang"),
        *(Fault("GET", LOOK, status=status) for status in (410, 429, 500, 502, 503, 504)),
        Fault("GET", LOOK, status=404, page="404 page not found"),
        Fault("GET", LOOK, status=200, page='{"kind": "Status", "status": "Success"}'),
        Fault("GET", "/pods$", status=503),
    ],
    ids=lambda fault: f"{fault.path} {fault.kind if fault.kind != 'answer' else fault.status}",
)
def test_a_fault_that_passes_is_ridden_out(api: ScriptedApi, patient: Any, fault: Fault) -> None:
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=lambda _: api.faults.append(fault))]
    api.script += [RUNNING] * 2 + [SUCCEEDED]
    patient.run()
    assert fault.times == 0
    assert len(api.made("POST")) == 1


# https://github.com/kr8s-org/kr8s/issues/476
def test_the_pauses_of_a_long_outage_grow_and_stay_bounded(api: ScriptedApi, patient: Any) -> None:
    api.script = [RUNNING, RUNNING, SUCCEEDED]
    api.faults = [Fault("GET", "/pods$", status=503, times=12)]
    patient.run()
    longest = [1, 2, 4, 8, 16] + 7 * [30]
    assert all(most / 2 <= pause <= most for pause, most in zip(patient.pauses[:12], longest, strict=True))


@pytest.mark.parametrize(("told", "waited"), [("7", 7.0), ("100000", 300.0)])
def test_the_server_says_when_to_come_again(api: ScriptedApi, patient: Any, told: str, waited: float) -> None:
    api.script = [RUNNING, SUCCEEDED]
    api.faults = [Fault("GET", "/pods$", status=429, headers={"Retry-After": told})]
    patient.run()
    assert patient.pauses[0] == waited


def test_an_outage_ends_with_the_jobs_own_deadline(api: ScriptedApi, launcher: Any) -> None:
    launcher = launcher.with_job("cluster.deadline_s=3600")
    outage = [Fault(method, LOOK, status=503, times=10000) for method in ("GET", "DELETE")]
    api.script = [JobState(condition("Created", "Running"), BOTH_RUN, act=lambda _: api.faults.extend(outage))]
    with pytest.raises(
        JobFailed, match=r"get pytorchjobs\.kubeflow\.org .* 503 .*no better answer in 35\d\d s"
    ) as caught:
        launcher.run()
    assert caught.value.leaves_open
    assert 3500 < launcher.now_s < 3700


def test_a_token_that_has_expired_is_read_anew(api: ScriptedApi, patient: Any) -> None:
    def renew(job: dict[str, Any]) -> None:
        api.token = "better"

    api.script = [JobState(condition("Created", "Running"), BOTH_RUN, act=renew), SUCCEEDED]
    patient.run()
    assert patient.pauses == [1, 1]


def test_a_token_that_stays_bad_ends_the_job_after_two_tries(api: ScriptedApi, launcher: Any) -> None:
    api.faults = [Fault("GET", LOOK, status=401, message="Unauthorized", times=100)]
    with pytest.raises(ApiError, match=r"401 .*Unauthorized"):
        launcher.run()
    assert len(api.requests) == 2


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_refused_create_ends_at_once_in_the_servers_words(api: ScriptedApi, launcher: Any, status: int) -> None:
    words = 'User "system:serviceaccount:team:launcher" cannot create resource'
    api.faults = [Fault("POST", "", status=status, message=words, times=100)]
    with pytest.raises(ApiError) as caught:
        launcher.run()
    expected = rf"create pytorchjobs\.kubeflow\.org '{launcher.job.name}' in namespace default: {status} .*: {words}"
    assert re.fullmatch(expected, str(caught.value))
    assert not caught.value.leaves_open
    assert len(api.made("POST")) == 1


def test_a_missing_custom_resource_is_named(api: ScriptedApi, launcher: Any) -> None:
    message = "the server could not find the requested resource"
    api.faults = [Fault("POST", "", status=404, message=message, times=100)]
    with pytest.raises(ApiError, match=message) as caught:
        launcher.run()
    assert caught.value.hint is not None and "custom resource" in caught.value.hint


def test_a_server_without_the_custom_resource_is_not_waited_for(api: ScriptedApi, patient: Any) -> None:
    api.faults = [Fault("GET", LOOK, status=404, page="404 page not found", times=100)]
    with pytest.raises(ApiError, match=r"get pytorchjobs\.kubeflow\.org .* in namespace default: 404 ") as caught:
        patient.run()
    assert caught.value.hint is not None and "custom resource" in caught.value.hint
    assert len(api.made("GET", "/pytorchjobs/")) == 2 and len(patient.pauses) == 1


def test_a_custom_resource_that_is_removed_ends_the_wait_for_its_job(api: ScriptedApi, patient: Any) -> None:
    page = Fault("GET", LOOK, status=404, page="404 page not found", times=1000)
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=lambda _: api.faults.append(page))]
    with pytest.raises(JobFailed, match="404 page not found"):
        patient.run()
    assert len(api.made("GET", "/readyz")) <= 30


def test_a_server_that_is_starting_is_waited_for(api: ScriptedApi, patient: Any) -> None:
    starting = [Fault("GET", LOOK, status=404, page="404 page not found", times=2), Fault("GET", "/readyz", times=2)]
    api.faults = starting
    api.script = [SUCCEEDED]
    patient.run()
    assert [each.times for each in starting] == [0, 0]


def test_a_job_that_may_not_be_watched_is_deleted(api: ScriptedApi, launcher: Any) -> None:
    api.faults = [Fault("GET", "/pods$", status=403, message="cannot list resource pods", times=100)]
    with pytest.raises(
        JobFailed, match=r"(?s)was deleted.*list pods in namespace default: 403 .*cannot list"
    ) as caught:
        launcher.run()
    assert caught.value.hint is not None and "service account" in caught.value.hint
    assert not api.jobs


def test_a_job_that_somebody_deletes_is_no_longer_waited_for(api: ScriptedApi, launcher: Any) -> None:
    api.script = [RUNNING, JobState(gone=True)]
    with pytest.raises(JobFailed, match=f"{launcher.job.name} no longer exists"):
        launcher.run()
    assert len(api.made("POST")) == 1


def test_another_job_of_the_same_name_is_not_taken_for_ours(api: ScriptedApi, launcher: Any) -> None:
    api.script = [RUNNING, JobState(act=lambda job: job["metadata"].update(uid="another"))]
    with pytest.raises(JobFailed, match="no longer exists"):
        launcher.run()
    assert not api.made("DELETE")


@pytest.mark.parametrize("kind", ["answer", "reset", "hang"])
def test_a_create_whose_answer_is_lost_is_not_made_twice(api: ScriptedApi, patient: Any, kind: Any) -> None:
    api.faults = [Fault("POST", "", kind, done=True)]
    api.script = [SUCCEEDED]
    patient.run()
    assert len(api.made("POST")) == 1
    assert list(api.jobs) == [patient.job.name]


@pytest.mark.parametrize("kind", ["answer", "reset", "hang"])
def test_a_create_that_was_not_done_is_made_again(api: ScriptedApi, patient: Any, kind: Any) -> None:
    api.faults = [Fault("POST", "", kind)]
    api.script = [SUCCEEDED]
    patient.run()
    assert len(api.made("POST")) == 2
    assert list(api.jobs) == [patient.job.name]


def test_a_job_that_appears_beside_the_create_is_taken_if_it_is_ours(api: ScriptedApi, patient: Any) -> None:
    api.faults = [Fault("GET", LOOK, status=404, reason="NotFound")]
    api.add(pytorchjob.render(patient.job))
    api.script = [SUCCEEDED]
    patient.run()
    assert [each.method for each in api.requests[:3]] == ["GET", "POST", "GET"]


def test_a_create_that_may_have_been_done_leaves_the_attempt_open(api: ScriptedApi, launcher: Any) -> None:
    api.faults = [Fault("POST", "", status=500, done=True), Fault("GET", LOOK, status=404, reason="NotFound")]
    api.faults.append(Fault("GET", LOOK, status=403))
    with pytest.raises(ApiError, match="403") as caught:
        launcher.run()
    assert caught.value.leaves_open and api.jobs


def test_a_token_that_is_refused_again_and_again_in_mid_run_is_read_anew_each_time(
    api: ScriptedApi, patient: Any
) -> None:
    refused = Fault("GET", LOOK, status=401, message="Unauthorized", times=5)
    act = lambda _: api.faults.append(refused)  # noqa: E731
    api.script = [RUNNING, JobState(condition("Created", "Running"), BOTH_RUN, act=act), SUCCEEDED]
    patient.run()
    assert refused.times == 0 and not api.made("DELETE")


@pytest.mark.parametrize("told", ["0", "1"])
def test_a_server_that_says_at_once_is_not_asked_without_a_pause(api: ScriptedApi, patient: Any, told: str) -> None:
    api.script = [RUNNING, SUCCEEDED]
    api.faults = [Fault("GET", "/pods$", status=429, headers={"Retry-After": told}, times=3)]
    patient.run()
    assert all(pause >= 0.5 for pause in patient.pauses)


def test_a_time_that_is_longer_than_the_patience_leaves_one_last_try(api: ScriptedApi, launcher: Any) -> None:
    api.script = [SUCCEEDED]
    api.faults = [Fault("POST", "", status=429, headers={"Retry-After": "100"})]
    launcher.run()
    assert launcher.pauses[0] == 5


def test_a_job_that_a_finalizer_holds_is_not_called_deleted(
    api: ScriptedApi, launcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(self: ScriptedApi, request: Any, name: str | None) -> tuple[int, Any]:
        if request.method != "DELETE":
            return jobs(self, request, name)
        self.jobs[str(name)]["metadata"] |= {"deletionTimestamp": "2026-03-02T06:00:00Z", "finalizers": ["a/b"]}
        return 200, self.jobs[str(name)]

    jobs = ScriptedApi._jobs
    monkeypatch.setattr(ScriptedApi, "_jobs", held)
    api.script = [JobState(condition("Created"))]
    with pytest.raises(JobFailed, match="not started") as caught:
        launcher.run()
    assert caught.value.leaves_open and "was deleted" not in str(caught.value)


def test_a_quota_that_is_written_at_the_same_moment_is_no_refusal(api: ScriptedApi, patient: Any) -> None:
    api.faults = [Fault("POST", "", status=409, reason="Conflict", message='resourcequotas "gpu" has been modified')]
    api.script = [SUCCEEDED]
    patient.run()
    assert len(api.made("POST")) == 2


@pytest.mark.parametrize("fault", [Fault("DELETE", "", status=409), Fault("DELETE", "", status=404, page="nothing")])
def test_a_deletion_that_is_not_confirmed_is_asked_for_again(api: ScriptedApi, launcher: Any, fault: Fault) -> None:
    uid = api.add(pytorchjob.render(launcher.job))["metadata"]["uid"]
    api.faults = [fault]
    assert Api("default", pause=lambda _: None).delete_job(launcher.job.name, uid)
    assert not api.jobs


def test_without_credentials_the_error_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    with pytest.raises(ValueError, match=r"no access to a Kubernetes cluster: .*set KUBECONFIG"):
        Api("default")


def test_a_list_is_read_to_its_last_page(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {None: {"items": [1], "metadata": {"continue": "next"}}, "next": {"items": [2], "metadata": {}}}
    monkeypatch.setattr(api, "_done", lambda _, request: (200, pages[request.query.get("continue")]))
    assert Api("default").list_pods("job") == [1, 2]


def test_what_the_official_client_does_by_itself_is_off(api: ScriptedApi, patient: Any) -> None:
    api.faults = [Fault("GET", LOOK, "reset", times=2)]
    api.script = [SUCCEEDED]
    patient.run()
    assert len(patient.pauses) == 3, "a pause of ours for each fault, and one look"
