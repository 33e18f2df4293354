import pytest
import yaml

from thaw.components.config import load
from thaw.pipelines.compile import compile_pipeline

GATE = "promotion={head: click, metric: auc, minimum: 0}"


def compiled(tmp_path, *overrides, num_retries=0, kind="whole"):
    path = tmp_path / "thaw.yaml"
    compile_pipeline(load("small", overrides), path, num_retries, kind)
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


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("from:prepare-backbone", ["prepare-backbone", "train-frozen", "train-cotrain", "evaluate", "promote"]),
        ("from:train-cotrain", ["train-cotrain", "evaluate", "promote"]),
        ("stage:train-frozen", ["train-frozen"]),
        ("stage:promote", ["promote"]),
    ],
)
def test_a_part_of_the_pipeline_takes_what_it_builds_on_from_where_its_arguments_say(tmp_path, kind, stages):
    document = next(yaml.safe_load_all(compiled(tmp_path, GATE, kind=kind)))
    found = document["root"]["dag"]["tasks"]
    imported = {name: task for name, task in found.items() if name.startswith("importer")}
    assert found.keys() - imported.keys() == set(stages)
    uris = {task["inputs"]["parameters"]["uri"]["componentInputParameter"] for task in imported.values()}
    parameters = document["root"]["inputDefinitions"]["parameters"]
    assert uris == {name for name in parameters if name.endswith("_uri")} - {"run_uri"}
    assert ("parent_uri" in uris) == (stages[0] != "prepare-backbone")
    for stage in stages:
        fingerprint = found[stage]["inputs"]["parameters"]["fingerprint"]
        assert fingerprint == {"componentInputParameter": "fingerprint"}
    for stage, parent in zip(stages[1:], stages, strict=False):
        assert parent in found[stage]["dependentTasks"]


def test_the_backbone_pipeline_publishes_what_it_pretrained(tmp_path):
    found = tasks(compiled(tmp_path, "backbone.publish_prefix_uri=gs://bucket/backbones", kind="backbone"))
    assert found.keys() == {"select-window", "prepare-backbone", "publish-backbone"}
    backbone = found["publish-backbone"]["inputs"]["artifacts"]["backbone"]["taskOutputArtifact"]
    assert backbone["producerTask"] == "prepare-backbone"


def test_the_window_of_a_part_that_selects_it_is_selected_for_a_date(tmp_path):
    found = tasks(compiled(tmp_path, kind="stage:select-window"))
    assert found.keys() == {"select-window"}
    assert found["select-window"]["inputs"]["parameters"]["date"] == {"componentInputParameter": "date"}


def test_an_unknown_part_is_refused(tmp_path):
    with pytest.raises(ValueError, match="stage 'training': the stages of this configuration are select-window"):
        compiled(tmp_path, kind="from:training")


def test_an_unknown_kind_is_refused_with_all_that_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"kind 'nix': give whole, backbone, .* scheduled or scheduled-backbone"):
        compiled(tmp_path, kind="nix")
