"""What holds for the compiled pipeline of every kind, and what travels through it when it runs."""

import datetime
import importlib.util
import json
from pathlib import Path

import pytest
import yaml
from compiled_steps import play
from google.protobuf import json_format
from kfp import dsl
from kfp.dsl.executor import Executor
from kfp.pipeline_spec import pipeline_spec_pb2

from thaw.components.config import load, to_parameter
from thaw.components.config.document import MAX_PARAMETER_BYTES
from thaw.components.runs import BACKBONE_STAGES, config_stages
from thaw.components.select_window.window import DataFile, Window, fingerprint
from thaw.pipelines.compile import compile_pipeline

MAX_ARGUMENT_BYTES = 131072
"""Linux takes no longer argument of a program, and KFP hands a step its whole input in one."""

OVERRIDES = ("promotion={head: click, metric: auc, minimum: 0}", "backbone.publish_prefix_uri=gs://bucket/backbones")
CONFIG = load("small", OVERRIDES)
SELECTING = (
    *("whole", "backbone", "scheduled", "scheduled-backbone"),
    *("from:select-window", "stage:select-window", "backbone:from:select-window"),
)
BUILDING = (
    *(f"{span}:{stage}" for stage in config_stages(CONFIG)[1:] for span in ("from", "stage")),
    *(f"backbone:from:{stage}" for stage in BACKBONE_STAGES[1:]),
)
KINDS = (*SELECTING, *BUILDING)
DATE = datetime.date(2026, 3, 2)


def compiled(kind, tmp_path, *overrides, num_retries=0):
    path = tmp_path / "thaw.yaml"
    compile_pipeline(load("small", [*OVERRIDES, *overrides]), path, num_retries, kind)
    return path.read_text()


def tasks(text):
    return next(yaml.safe_load_all(text))["root"]["dag"]["tasks"]


def is_import(task):
    return task["componentRef"]["name"].startswith("comp-importer")


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_one_document_and_parses_by_kfps_protobuf(kind, tmp_path):
    (document,) = yaml.safe_load_all(compiled(kind, tmp_path))  # another would be of settings for one platform
    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    done = [name for name, task in tasks(yaml.safe_dump(document)).items() if not is_import(task)]
    suffix = kind.removeprefix("scheduled").removeprefix("-") or "whole"
    assert set(done) == set(config_stages(CONFIG, suffix))
    assert len(spec.deployment_spec["executors"]) == len(spec.components)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("image", ["registry.example/thaw:0.1.0-cuda", f"registry.example/thaw@sha256:{'ab12' * 16}"])
def test_every_step_runs_the_configured_image_and_installs_nothing(kind, image, tmp_path):
    text = compiled(kind, tmp_path, f"cluster.image='{image}'")
    assert "pip install" not in text and "pip3" not in text
    executors = next(yaml.safe_load_all(text))["deploymentSpec"]["executors"].values()
    assert {executor["container"]["image"] for executor in executors if "container" in executor} == {image}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_configuration_is_compiled_in_but_policies_and_image(kind, tmp_path):
    text = compiled(kind, tmp_path)
    elsewhere = (
        "cluster.secret_env={STORE_KEY: {secret: store-credentials, key: token}}",
        "cluster.env={TRACKING_TOKEN: abcdef}",
        "cluster.image_pull_secrets=[registry-credentials]",
        "cluster.namespace=ranking",
        "data.uri=gs://bucket/feed",
        "seed=7",
    )
    assert compiled(kind, tmp_path, *elsewhere) == text


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_taken_from_the_cache_and_a_failed_step_is_tried_again_for_longer_than_an_hour(kind, tmp_path):
    for task in tasks(compiled(kind, tmp_path, num_retries=3)).values():
        assert not task.get("cachingOptions", {}).get("enableCache", False)
        if not is_import(task):
            assert task["retryPolicy"] == {
                "maxRetryCount": 3,
                "backoffDuration": "60s",
                "backoffFactor": 2,
                "backoffMaxDuration": "86400s",
            }


@pytest.fixture(scope="module")
def longest_config():
    """The longest configuration that travels, filled with what grows most where JSON is put into JSON."""

    def filled(num_quotes):
        return load(
            "small", [*OVERRIDES, "data.uri=gs://bucket/feed", "cluster.env={FILL: '" + '"' * num_quotes + "'}"]
        )

    num_quotes = (MAX_PARAMETER_BYTES - len(to_parameter(filled(0)).encode())) // 2
    config = filled(num_quotes)
    assert len(to_parameter(config).encode()) in (MAX_PARAMETER_BYTES - 1, MAX_PARAMETER_BYTES)
    return config


@pytest.fixture(scope="module")
def window():
    """A window of 100,000 files in 400 days."""
    days = [DATE + datetime.timedelta(days=day) for day in range(-399, 1)]
    files = [
        DataFile(
            uri=f"gs://bucket/feed/requests/day={day}/part-{part:05}-c000.snappy.parquet",
            day=day,
            size=134_217_728,
            version="generation:1772409600000000",
            row_groups=(1_048_576,),
        )
        for day in days
        for part in range(250)
    ]
    return Window(
        date=DATE,
        training_days=tuple(days[:-1]),
        evaluation_days=tuple(days[-1:]),
        training=tuple(files[:-250]),
        evaluation=tuple(files[-250:]),
        fingerprint=fingerprint(files, "gs://bucket/feed"),
    )


@pytest.fixture(scope="module")
def arguments(longest_config, tmp_path_factory):
    """Of all kinds; those of a part are added from the run that it builds on."""
    root = tmp_path_factory.mktemp("root")
    return {
        "config": to_parameter(longest_config),
        "root": str(root),
        "run_uri": str(root / "runs/r"),
        "date": str(DATE),
        "backend": "kubernetes",
        "schedule": "daily",
        "cron": "0 0 6 * * *",
        "zone": "UTC",
        "lag_days": 1,
        dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER: "2026-03-03T06:00:00Z",
        dsl.PIPELINE_JOB_ID_PLACEHOLDER: "2f6ad5b7-1f3e-4f6e-8d5a-0d2c9f0a1b2c",
    }


def played(kind, config, arguments, folder):
    """Every step of a pipeline with what it is started with, those that select done and the others not."""
    path = folder / "thaw.yaml"
    compile_pipeline(config, path, kind=kind)
    steps = []

    def execute(step):
        steps.append(step)
        if step.task != "select-window":
            return {}
        source = folder / "ephemeral_component.py"
        source.write_text(step.source)
        module_spec = importlib.util.spec_from_file_location("ephemeral_component", source)
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        Executor(step.executor_input, getattr(module, step.command[-1])).execute()
        return json.loads(Path(step.output_path).read_text())

    document = next(yaml.safe_load_all(path.read_text()))
    return document, steps, play(document, arguments, str(folder / "kfp"), execute)


def assert_small(document, steps, outputs):
    """Everything that travels, where a document of the window's files would not be."""
    for task in outputs.values():
        for value in task["parameters"].values():
            assert len(value.encode()) <= 500
    for step in steps:
        for value in step.executor_input["inputs"]["parameterValues"].values():
            assert len(str(value).encode()) <= MAX_PARAMETER_BYTES
        assert max(len(word.encode()) for word in step.command) < MAX_ARGUMENT_BYTES
    for name, component in document["components"].items():
        if "select-window" not in name:
            assert "parameters" not in component.get("outputDefinitions", {})


@pytest.mark.parametrize("kind", SELECTING)
def test_a_window_of_100_000_files_travels_as_the_uri_of_its_document(
    kind, longest_config, arguments, window, tmp_path, monkeypatch
):
    monkeypatch.setattr("thaw.components.select_window.step.select", lambda config, day: window)
    name = kind.replace(":", "-")
    given = {**arguments, "run_uri": f"{arguments['root']}/runs/{name}", "schedule": name}
    document, steps, outputs = played(kind, longest_config, given, tmp_path)
    assert_small(document, steps, outputs)
    (selected,) = outputs["select-window"]["artifacts"]["window"]["artifacts"]
    assert Path(selected["uri"], "window.json").read_bytes().count(b"snappy.parquet") == 100_000


@pytest.mark.parametrize("kind", BUILDING)
def test_a_part_of_a_run_takes_what_it_builds_on_as_uris(kind, longest_config, arguments, tmp_path):
    given = {
        **arguments,
        "window_uri": f"{arguments['root']}/runs/whole/select-window/attempt-1",
        "parent_uri": f"{arguments['root']}/runs/whole/train-frozen/attempt-1",
        "fingerprint": f"sha256:{'0' * 64}",
    }
    document, steps, outputs = played(kind, longest_config, given, tmp_path)
    assert_small(document, steps, outputs)
    (window,) = steps[0].executor_input["inputs"]["artifacts"].get("window", {"artifacts": [None]})["artifacts"]
    assert window is None or window["uri"] == given["window_uri"]
