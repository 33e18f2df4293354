import pytest

from thaw.components import runs, storage
from thaw.components.config import from_parameter
from thaw.components.runs import create_run, stage


@pytest.fixture
def parent(gcs_uri, config):
    """A run on the cluster whose window and backbone are committed."""
    run_uri = create_run(gcs_uri, "r", config, {"date": "2026-03-02", "backend": "kubernetes", "kind": "whole"})
    with stage(config, run_uri, "select-window") as window:
        storage.write_bytes(storage.join(window.uri, "window.json"), b"{}")
        window.commit(outputs={"window": "window.json"}, window={"date": "2026-03-02", "fingerprint": "sha256:ab"})
    with stage(config, run_uri, "prepare-backbone", {"window": window.uri}) as backbone:
        storage.write_bytes(storage.join(backbone.uri, "model"), b"tables")
        backbone.commit(outputs={"model": "model"})
    return {"select-window": window.committed, "prepare-backbone": backbone.committed}


def test_a_run_of_kubeflow_is_done_again_on_kubeflow_with_the_same_request_as_any(
    thaw, kfp_server, gcs_uri, config, parent
):
    stage_options = ("--run", "r", "--stage", "train-frozen", "--run-id", "again", "--root", gcs_uri)
    result = thaw("rerun", *stage_options, "--set", "recipe.dense_lr=0.001", "--service-account", "trainer")
    assert result.exit_code == 0, result.output
    (run,) = kfp_server.runs
    assert (run["display_name"], run["service_account"]) == ("again", "trainer")
    parameters = dict(run["runtime_config"]["parameters"])
    assert from_parameter(parameters.pop("config")).recipe.dense_lr == 0.001
    assert parameters == {
        "run_uri": f"{gcs_uri}/runs/again",
        "backend": "kubernetes",
        "window_uri": parent["select-window"].uri,
        "parent_uri": parent["prepare-backbone"].uri,
        "fingerprint": "sha256:ab",
    }
    record = runs.read_run(f"{gcs_uri}/runs/again")
    assert (record.extra["date"], record.extra["kind"]) == ("2026-03-02", "from:train-frozen")
    assert runs.parent_of(record) == runs.Parent(run="r", stage="train-frozen", inputs=parent)
    again = thaw("rerun", *stage_options, "--set", "recipe.dense_lr=0.001", "--service-account", "trainer")
    assert again.exit_code == 0 and len(kfp_server.runs) == 1


def test_what_changed_since_is_refused_before_anything_is_sent_or_recorded(thaw, kfp_server, gcs_uri, parent):
    storage.write_bytes(storage.join(parent["prepare-backbone"].uri, "model"), b"TABLES")
    stage_options = ("--run", "r", "--stage", "train-frozen", "--run-id", "again", "--root", gcs_uri)
    result = thaw("rerun", *stage_options)
    assert result.exit_code == 1
    assert "prepare-backbone of run r" in result.output and result.output.count("sha256:") == 2
    assert kfp_server.writes() == [] and not storage.exists(f"{gcs_uri}/runs/again")


def test_the_stage_alone_is_another_run_than_the_stages_from_it_on(thaw, kfp_server, gcs_uri, parent):
    options = ("rerun", "--run", "r", "--stage", "train-frozen", "--run-id", "again", "--root", gcs_uri)
    assert thaw(*options, "--only").exit_code == 0
    refused = thaw(*options)
    assert refused.exit_code == 1 and "runs/again was begun as stage:train-frozen" in refused.output
    assert len(kfp_server.runs) == 1
