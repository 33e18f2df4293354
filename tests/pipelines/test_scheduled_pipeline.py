import pytest
import yaml
from google.protobuf import json_format
from kfp.compiler import Compiler
from kfp.pipeline_spec import pipeline_spec_pb2

from thaw.components.config import load
from thaw.pipelines.training import scheduled_pipeline


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled") / "scheduled.yaml"
    Compiler().compile(scheduled_pipeline(load("small"), num_retries=1), str(path))
    return next(yaml.safe_load_all(path.read_text()))


def test_it_parses_by_kfps_protobuf(document):
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    assert spec.pipeline_info.name == "thaw-scheduled"


def test_the_scheduled_time_is_the_whole_constant_of_one_input_of_the_first_task_and_stands_nowhere_else(document):
    inputs = document["root"]["dag"]["tasks"]["select-window"]["inputs"]["parameters"]
    assert inputs["scheduled_time"] == {"runtimeValue": {"constant": "{{$.pipeline_job_schedule_time_utc}}"}}
    assert inputs["kfp_run"] == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    assert yaml.safe_dump(document).count("pipeline_job_schedule_time_utc") == 1


def test_all_later_tasks_take_run_and_fingerprint_from_the_first_and_no_date_of_their_own(document):
    tasks = document["root"]["dag"]["tasks"]
    assert set(tasks) == {"select-window", "prepare-backbone", "train-frozen", "train-cotrain", "evaluate"}
    for name, task in tasks.items():
        if name != "select-window":
            parameters = task["inputs"]["parameters"]
            for key in ("run_uri", "fingerprint"):
                assert parameters[key]["taskOutputParameter"] == {
                    "producerTask": "select-window",
                    "outputParameterKey": key,
                }
            assert not {"date", "schedule", "zone"} & parameters.keys()


def test_no_task_is_taken_from_the_cache(document):
    for task in document["root"]["dag"]["tasks"].values():
        assert not task["cachingOptions"].get("enableCache", False)


def test_its_parameters_are_those_of_a_schedule(document):
    definitions = document["root"]["inputDefinitions"]["parameters"]
    assert set(definitions) == {"config", "root", "schedule", "cron", "zone", "lag_days", "backend"}
    assert {name for name, definition in definitions.items() if not definition.get("isOptional")} == {
        "config",
        "root",
        "schedule",
        "cron",
    }
