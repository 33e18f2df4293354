import pytest
import yaml

from thaw.components.config import load
from thaw.pipelines.compile import compile_pipeline


def compiled(tmp_path, *overrides, num_retries=0):
    path = tmp_path / "thaw.yaml"
    compile_pipeline(load("small", overrides), path, num_retries)
    return path.read_text()


def tasks(text):
    return next(yaml.safe_load_all(text))["root"]["dag"]["tasks"]


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
