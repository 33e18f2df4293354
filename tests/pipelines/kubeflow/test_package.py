import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from thaw.components.config import load
from thaw.pipelines.kubeflow.package import Package, check_arguments, compiled

GOOD = {"config": "{}", "root": "gs://b", "schedule": "s", "cron": "0 0 6 * * *", "zone": "UTC", "lag_days": 1}


@pytest.fixture(scope="module")
def scheduled():
    return compiled(load("small"), 1, "scheduled")


def test_the_document_is_what_the_protobuf_reads(scheduled):
    spec = json_format.ParseDict(scheduled.document, pipeline_spec_pb2.PipelineSpec())
    assert spec.pipeline_info.name == "thaw-scheduled"


def test_a_platform_goes_along_where_there_is_one():
    assert Package({"root": {}}, {"platforms": {}}).document == {
        "pipeline_spec": {"root": {}},
        "platform_spec": {"platforms": {}},
    }


def test_arguments_that_the_pipeline_takes_pass(scheduled):
    check_arguments(scheduled, GOOD)
    check_arguments(compiled(load("small"), 0, "whole"), {"config": "{}", "run_uri": "gs://b", "date": "d"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nope": 1}, "nope: no such input"),
        ({"root": None}, "root: missing"),
        ({"lag_days": "1"}, "lag_days: '1' is a str, and the pipeline takes NUMBER_INTEGER"),
        ({"lag_days": True}, "lag_days: True is a bool"),
        ({"lag_days": 1.0}, "lag_days: 1.0 is a float"),
        ({"config": {}}, "config: {} is a dict, and the pipeline takes STRING"),
        ({"config": "é" * 16_001}, "config: 32002 bytes, at most 32000 can travel"),
    ],
)
def test_an_unknown_missing_mistyped_or_long_argument_is_named_with_what_the_pipeline_takes(scheduled, changes, words):
    arguments = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ValueError) as caught:
        check_arguments(scheduled, arguments)
    assert words in str(caught.value)
    assert "It takes backend (STRING), config (STRING), cron (STRING), lag_days (NUMBER_INTEGER)" in str(caught.value)


def test_all_faults_are_named_at_once(scheduled):
    with pytest.raises(ValueError, match="a: no such input; b: no such input; config: missing"):
        check_arguments(scheduled, {"a": 1, "b": 2, "root": "gs://b", "schedule": "s"})


def test_a_pipeline_that_no_object_of_kubernetes_holds_is_refused(scheduled):
    large = Package({**scheduled.spec, "large": "x" * 1_000_000}, {})
    with pytest.raises(ValueError, match=r"pipeline thaw-scheduled: 10[0-9]{5} bytes"):
        check_arguments(large, GOOD)
