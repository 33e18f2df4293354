import copy
import datetime
import json
import threading

import pytest
import yaml
from kfp_server import Fault

from thaw.components import runs, storage
from thaw.components.config import from_parameter
from thaw.pipelines.kubeflow import client, connection
from thaw.pipelines.kubeflow.client import Server
from thaw.pipelines.kubeflow.submit import Placement, request
from thaw.pipelines.kubeflow.submit import submit as start

DATE = ["--date", "2026-03-02"]
BACKBONE = "backbone={pretrain: {num_days: 2}, publish_prefix_uri: 'gs://bucket/backbones'}"


def test_a_run_is_recorded_then_started_and_its_url_printed(submit, kfp_server, gcs_uri, config):
    result = submit("--run-id", "r1", "--service-account", "trainer", "--pipeline-root", "gs://kfp")
    assert result.exit_code == 0, result.output
    (run,) = kfp_server.runs
    assert f"{kfp_server.host}/#/runs/details/{run['run_id']}" in result.output
    assert (run["display_name"], run["service_account"]) == ("r1", "trainer")
    parameters = run["runtime_config"]["parameters"]
    assert run["runtime_config"]["pipeline_root"] == "gs://kfp"
    assert {key: parameters[key] for key in ("run_uri", "date", "backend")} == {
        "run_uri": f"{gcs_uri}/runs/r1",
        "date": "2026-03-02",
        "backend": "kubernetes",
    }
    assert from_parameter(parameters["config"]) == config
    record = runs.read_run(f"{gcs_uri}/runs/r1")
    assert record.config == config.model_dump(mode="json")
    assert record.extra == {
        "date": "2026-03-02",
        "backend": "kubernetes",
        "kind": "whole",
        "experiment": "thaw",
        "kubeflow": kfp_server.host,
    }


def test_asking_twice_is_asking_once(submit, kfp_server):
    assert submit().exit_code == 0
    writes = len(kfp_server.writes())
    again = submit()
    assert again.exit_code == 0
    assert "is there, PENDING" in again.output and kfp_server.runs[0]["run_id"] in again.output
    assert len(kfp_server.writes()) == writes


def test_another_configuration_is_another_run_unless_it_is_given_the_same_name(submit, kfp_server):
    assert submit().exit_code == submit("--set", "seed=7").exit_code == 0
    assert len({run["display_name"] for run in kfp_server.runs}) == 2
    assert submit("--run-id", "r1").exit_code == 0
    writes = len(kfp_server.writes())
    refused = submit("--run-id", "r1", "--set", "seed=7")
    assert refused.exit_code == 1
    assert "Kubeflow has a run r1" in refused.output and "another config" in refused.output
    assert len(kfp_server.writes()) == writes


def test_another_kind_is_another_run_unless_it_is_given_the_same_name(submit, kfp_server):
    as_backbone = ["--set", BACKBONE, "--kind", "backbone"]
    assert submit(*as_backbone).exit_code == submit("--set", BACKBONE).exit_code == 0
    assert len({run["display_name"] for run in kfp_server.runs}) == 2
    assert submit("--run-id", "r1", *as_backbone).exit_code == 0
    writes = len(kfp_server.writes())
    refused = submit("--run-id", "r1", "--set", BACKBONE)
    assert refused.exit_code == 1 and "runs/r1 was begun as backbone" in refused.output
    assert len(kfp_server.writes()) == writes


def test_a_run_that_has_failed_is_status_1_with_what_to_do_next(submit, kfp_server):
    assert submit("--run-id", "r1").exit_code == 0
    kfp_server.runs[0]["state"] = "FAILED"
    again = submit("--run-id", "r1")
    assert again.exit_code == 1 and len(kfp_server.runs) == 1
    assert "is there, FAILED" in again.output
    assert all(words in again.output for words in ("next: thaw why r1 --root gs://", "thaw rerun", "--run-id"))


@pytest.mark.parametrize(("second", "is_kept"), [(1, False), (30, True)])
def test_of_two_runs_that_are_started_at_once_the_one_that_was_created_first_stays(submit, kfp_server, second, is_kept):
    kfp_server.now = kfp_server.now.replace(second=20)
    assert submit("--run-id", "r1").exit_code == 0
    other = {**copy.deepcopy(kfp_server.runs.pop()), "run_id": "other", "created_at": f"2026-03-02T12:00:{second:02}Z"}

    def start_another(method, path):
        if (method, path) == ("POST", "/runs"):
            kfp_server.runs.append(other)

    kfp_server.before = start_another
    result = submit("--run-id", "r1")
    assert result.exit_code == 0, result.output
    if is_kept:
        assert "run r1: started" in result.output and len(kfp_server.runs) == 2  # the other command deletes its own
    else:
        assert "run r1: is there, PENDING" in result.output and kfp_server.runs == [other]


def test_two_commands_that_start_one_run_at_once_leave_one(kfp_server, config, gcs_uri, monkeypatch):
    looked, created = threading.Barrier(2, timeout=100), threading.Barrier(2, timeout=100)
    create, results = Server.create_run, []
    monkeypatch.setattr(Server, "create_run", lambda *arguments: looked.wait() + 1 and create(*arguments))
    asked = request(config, gcs_uri, datetime.date(2026, 3, 2), Placement(), run_id="r1")

    def command():
        results.append(start(Server(kfp_server.host), asked, pause=lambda _: created.wait()))

    commands_at_once = [threading.Thread(target=command) for _ in range(2)]
    for thread in commands_at_once:
        thread.start()
    for thread in commands_at_once:
        thread.join()
    (run,) = kfp_server.runs
    assert [found.run_id for found, _ in results] == [run["run_id"]] * 2
    assert sorted(is_new for _, is_new in results) == [False, True]


def test_a_record_of_another_configuration_is_refused_before_kubeflow_is_told(submit, kfp_server, gcs_uri, config):
    runs.create_run(gcs_uri, "r1", config, {"date": "2026-03-02"})
    for arguments, words in (
        (["--set", "seed=7"], "seed: 0 in its record, 7 in this run"),
        (["--date", "2026-03-03"], "begun for D = 2026-03-02"),
    ):
        refused = submit("--run-id", "r1", *arguments)
        assert refused.exit_code == 1 and words in refused.output
    assert kfp_server.writes() == []


def test_a_command_that_was_cut_off_after_the_record_goes_on_when_it_is_repeated(submit, kfp_server, gcs_uri):
    kfp_server.faults.append(Fault("POST", "/runs", status=403, body='{"message": "no right to create runs"}'))
    refused = submit("--run-id", "r1")
    assert refused.exit_code == 1
    assert "did not start run r1: 403 Forbidden. no right to create runs" in refused.output
    assert storage.exists(f"{gcs_uri}/runs/r1/run.json")
    assert submit("--run-id", "r1").exit_code == 0
    assert [run["display_name"] for run in kfp_server.runs] == ["r1"]


@pytest.mark.parametrize("status", [None, 500, 504])
@pytest.mark.parametrize("after_effect", [False, True])
def test_a_create_whose_answer_was_lost_is_looked_up_and_takes_effect_once(submit, kfp_server, status, after_effect):
    kfp_server.faults.append(Fault("POST", "/runs", status=status, after_effect=after_effect))
    result = submit()
    assert result.exit_code == 0, result.output
    assert len(kfp_server.runs) == 1
    assert kfp_server.runs[0]["run_id"] in result.output
    after_fault = kfp_server.requests[[request[0] for request in kfp_server.requests].index("POST", 3) + 1 :]
    assert after_fault[0][0] == "GET" and "filter=" in after_fault[0][1]


def test_a_create_that_timed_out_after_its_effect_is_not_sent_again(submit, kfp_server, monkeypatch):
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 1)
    kfp_server.faults.append(Fault("POST", "/runs", status=0, after_effect=True))
    result = submit()
    assert result.exit_code == 0, result.output
    assert [path for method, path, _ in kfp_server.writes() if path == "/runs"] == ["/runs"]
    assert len(kfp_server.runs) == 1


def test_a_server_that_stops_in_mid_answer_is_given_up_after_its_time(submit, kfp_server, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_S", 1)
    monkeypatch.setattr(connection, "PAUSES_S", ())
    kfp_server.faults.append(Fault("GET", "/healthz", status=0))
    result = submit()
    assert result.exit_code == 1
    assert f"{kfp_server.host} did not say how it is, no answer: Read timed out" in result.output
    assert kfp_server.writes() == []


@pytest.mark.parametrize("page", ["<html>Log in</html>", "", "[]", "{}", '{"run_id": ""}', '{"created_at": "now"}'])
@pytest.mark.parametrize("path", ["/runs$", "/experiments$"])
def test_a_page_in_place_of_an_answer_is_not_taken_for_success(submit, kfp_server, page, path):
    kfp_server.faults.append(Fault("POST", path, status=200, body=page, times=9))
    result = submit()
    assert result.exit_code == 1 and "started" not in result.output
    assert kfp_server.host in result.output.splitlines()[-1] and "Traceback" not in result.output
    assert kfp_server.runs == []


@pytest.mark.parametrize("page", ["<html>Log in</html>", '{"runs": 3}', '{"total_size": "x"}'])
def test_a_page_in_place_of_the_runs_is_not_taken_for_none(submit, kfp_server, page):
    assert submit().exit_code == 0
    kfp_server.faults.append(Fault("GET", "/runs", status=200, body=page, times=9))
    result = submit()
    assert result.exit_code == 1 and f"{kfp_server.host} did not find run" in result.output
    assert len(kfp_server.runs) == 1


def test_a_short_outage_is_ridden_out_and_a_long_one_is_one_line_with_the_servers_words(submit, kfp_server):
    kfp_server.faults.append(Fault("GET", "/(healthz|runs)", status=503, times=2))
    assert submit().exit_code == 0
    kfp_server.faults.append(Fault("GET", "/runs", status=503, times=9))
    result = submit()
    assert result.exit_code == 1
    words = "503 Service Unavailable. the server is overloaded"
    assert result.output.splitlines()[-1].endswith(words) and "Traceback" not in result.output


def test_a_server_of_many_users_is_asked_in_the_users_namespace(submit, kfp_server):
    kfp_server.health = {"multi_user": True, "tag_name": "2.17.0"}
    refused = submit()
    assert refused.exit_code == 1 and "give --namespace" in refused.output
    assert submit("--namespace", "ranking").exit_code == 0
    assert kfp_server.experiments[0]["namespace"] == "ranking"
    assert all("namespace=ranking" in path for method, path, _ in kfp_server.requests if path.startswith("/runs?"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--date", "[[ScheduledTime.2006-01-02]]"], "--date: '[[ScheduledTime.2006-01-02]]' is not a date"),
        (["--date", "2026-02-30"], "--date: '2026-02-30' is no day of the calendar; give YYYY-MM-DD"),
        (["--set", "data.window.num_days=1000000"], "data.window.num_days: 1000000 days"),
        (["--set", "training.nope=1"], "training.nope: no such key"),
        (["--root", "/tmp/here"], "--root: /tmp/here is on this machine"),
        (["--root", "file:///tmp/here"], "is on this machine"),
        (["--root", "memory://x"], "is on this machine"),
        (["--root", "gss://bucket"], "--root: gss://bucket has a scheme"),
        (["--root", "gs://"], "--root: gs:// names no bucket"),
        (["--root", "gs:///x"], "names no bucket"),
        (["--root", "gs://b/../x"], "--root: 'gs://b/../x' has a '..'"),
        (["--root", "gs://b/x?y=1#z"], "has a '..', '?', '#' or line break"),
        (["--root", "gs://b/x\n/y"], "has a '..', '?', '#' or line break"),
        (["--set", "data.uri=/data/feed"], "data.uri: /data/feed is on this machine"),
        (["--set", "backbone={fetch: {uri: /tmp/b}}"], "backbone.fetch.uri: /tmp/b is on this machine"),
        (["--set", "backbone={fetch: {prefix_uri: /tmp/b}}"], "backbone.fetch.prefix_uri: /tmp/b is on this machine"),
        (["--retries", "-1"], "--retries -1: give 0 to 100"),
        (["--retries", "101"], "--retries 101: give 0 to 100"),
        (["--experiment", ""], "--experiment '': "),
        (["--experiment", "e" * 129], "a name has 1 to 128 characters"),
        (["--service-account", "A b"], "--service-account 'A b': "),
        (["--service-account", ""], "--service-account '': "),
        (["--pipeline-root", "nope"], "--pipeline-root: nope is on this machine"),
        (["--pipeline-root", "gs://"], "--pipeline-root: gs:// names no bucket"),
        (["--date", "2030-01-01"], "--date 2030-01-01: D and the days after it are evaluated"),
        (["--date", "2030-01-01"], "the last D whose days are is 2029-12-31"),
        (["--run-id", "a/b"], "run id 'a/b'"),
        (["--run-id", "r" * 200], "200 characters, at most 120"),
    ],
)
def test_what_cannot_run_is_refused_before_any_request(submit, kfp_server, gcs_uri, arguments, words):
    result = submit(*arguments)
    assert result.exit_code == 1
    assert words in result.output
    assert kfp_server.requests == []
    assert storage.list_dirs(gcs_uri) == []


def test_a_password_in_the_root_is_refused_and_not_repeated(submit, kfp_server):
    result = submit(root="http://ann:hunter2@127.0.0.1:1/x")
    assert result.exit_code == 1 and "--root: a password in a URI" in result.output
    assert "hunter2" not in result.output and kfp_server.requests == []


def test_an_empty_name_is_refused_before_any_request(submit, kfp_server):
    result = submit("--run-id", "")
    assert result.exit_code == 1 and "run id ''" in result.output
    assert kfp_server.requests == []


@pytest.mark.parametrize("pause", ["0", "-1", "nan", "inf"])
def test_a_pause_that_is_none_is_refused_before_any_request(submit, kfp_server, pause):
    result = submit("--wait", "--poll-s", pause)
    assert result.exit_code != 0 and "--poll-s" in result.output and kfp_server.requests == []


def test_the_last_day_that_is_over_can_be_run(submit, kfp_server):
    assert submit("--date", "2029-12-31").exit_code == 0
    assert submit("--pipeline-root", "minio://mlpipeline/v2").exit_code == 0


@pytest.mark.parametrize(("image", "words"), [("thaw:latest", "is the default of cluster.image"), ("t:1", "is a tag")])
def test_an_image_that_can_change_is_warned_of_beside_the_output(submit, kfp_server, image, words):
    result = submit("--set", f"cluster.image={image}")
    assert result.exit_code == 0
    assert f"warning: image {image} {words}" in result.stderr and "digest" in result.stderr
    assert "warning" not in result.stdout and "warning" not in submit().stderr


def test_a_right_that_is_lacking_is_one_line_that_says_how(submit, kfp_server):
    kfp_server.faults.append(Fault("GET", "/runs", status=403, body='{"message": "RBAC: access denied"}'))
    result = submit()
    assert result.exit_code == 1 and "RBAC: access denied" in result.output and "--namespace" in result.output


def test_data_that_the_document_has_generated_are_made_where_the_pods_find_them(thaw, kfp_server, gcs_uri):
    assert thaw("submit", "--preset", "small", *DATE, "--root", gcs_uri).exit_code == 0
    config = from_parameter(kfp_server.runs[0]["runtime_config"]["parameters"]["config"])
    assert config.data.uri.startswith(f"{gcs_uri}/data/demo-S-")
    assert storage.exists(f"{config.data.uri}/requests")


def test_a_dry_run_prints_the_request_the_jobs_and_their_cost_and_does_nothing(submit, kfp_server, gcs_uri):
    shown = submit("--dry-run", "--run-id", "r1")
    assert shown.exit_code == 0, shown.output
    assert kfp_server.requests == [] and storage.list_dirs(gcs_uri) == []
    body, *jobs = yaml.safe_load_all(shown.output)
    assert submit("--run-id", "r1").exit_code == 0
    sent = next(body for method, path, body in kfp_server.writes() if path == "/runs")
    assert json.loads(json.dumps(body)) == {**sent, "experiment_id": "<id of experiment thaw>"}
    stages = [job["metadata"]["labels"]["thaw/stage"] for job in jobs]
    assert stages == ["prepare-backbone", "train-frozen", "train-cotrain", "evaluate"]
    assert "# no GPU-hours: all jobs run on CPU" in shown.output


def test_a_dry_run_counts_the_gpu_hours_of_all_tries(thaw, gcs_uri):
    shown = thaw("submit", "--preset", "production", *DATE, "--root", gcs_uri, "--retries", "1", "--dry-run")
    assert "# train-cotrain: 8 pods, 64 GPUs x 12 h x 2 tries = 1536 GPU-hours" in shown.output
    assert "# at most 4608 GPU-hours" in shown.output
