import pytest
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from thaw.components.config import load
from thaw.pipelines.compile import compile_pipeline


def compiled(tmp_path, *overrides, num_retries=0):
    path = tmp_path / "thaw.yaml"
    compile_pipeline(load("small", overrides), path, num_retries)
    return path.read_text()


def tasks(text):
    return next(yaml.safe_load_all(text))["root"]["dag"]["tasks"]


def test_the_pipeline_parses_by_kfps_protobuf(tmp_path):
    document = next(yaml.safe_load_all(compiled(tmp_path)))
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    assert spec.pipeline_info.name == "thaw"


@pytest.mark.parametrize(
    ("policies", "stages"),
    [
        ("[frozen, cotrain]", ["train-frozen", "train-cotrain"]),
        ("[cotrain]", ["train-cotrain"]),
        ("[frozen, frozen]", ["train-frozen", "train-frozen-2"]),
        ("[cotrain, cotrain]", ["train-cotrain", "train-cotrain-2"]),
    ],
)
def test_the_tasks_are_the_stages_in_their_order(tmp_path, policies, stages):
    found = tasks(compiled(tmp_path, f"recipe.policies={policies}"))
    assert set(found) == {"select-window", "prepare-backbone", *stages, "evaluate"}
    parents = ["prepare-backbone", *stages]
    for stage, parent in zip([*stages, "evaluate"], parents):
        assert parent in found[stage]["dependentTasks"]


def test_compiling_twice_gives_the_same_bytes(tmp_path):
    assert compiled(tmp_path) == compiled(tmp_path)


def test_nothing_is_installed_when_a_step_starts_and_the_image_is_the_configured_one(tmp_path):
    image = f"registry.example/thaw@sha256:{'abcd' * 16}"
    text = compiled(tmp_path, f"cluster.image='{image}'")
    assert "pip install" not in text
    executors = next(yaml.safe_load_all(text))["deploymentSpec"]["executors"].values()
    assert {executor["container"]["image"] for executor in executors} == {image}


def test_no_step_is_taken_from_kfps_cache_and_later_ones_take_the_fingerprint(tmp_path):
    found = tasks(compiled(tmp_path))
    for name, task in found.items():
        assert not task["cachingOptions"].get("enableCache", False)
        if name != "select-window":
            fingerprint = task["inputs"]["parameters"]["fingerprint"]["taskOutputParameter"]
            assert fingerprint["producerTask"] == "select-window"


def test_retries_are_off_unless_asked_for_and_then_outlast_an_hour(tmp_path):
    assert all("retryPolicy" not in task for task in tasks(compiled(tmp_path)).values())
    for task in tasks(compiled(tmp_path, num_retries=2)).values():
        assert task["retryPolicy"]["maxRetryCount"] == 2
        assert int(task["retryPolicy"]["backoffMaxDuration"].rstrip("s")) > 3600
