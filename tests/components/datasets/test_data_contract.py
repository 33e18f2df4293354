"""What the page on the data contract says is what happens."""

import datetime
import re
import subprocess
import sys
from pathlib import Path

import pytest

from thaw.components import config, datasets
from thaw.components.datasets import generate_demo
from thaw.components.select_window.selection import select

README = Path(datasets.__file__).with_name("README.md")


def code_block(language: str) -> str:
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    return block


def test_the_example_writes_a_data_set_whose_window_its_configuration_selects(tmp_path, monkeypatch):
    subprocess.run([sys.executable, "-c", code_block("python")], cwd=tmp_path, check=True)
    (tmp_path / "news.yaml").write_text(code_block("yaml"))
    monkeypatch.chdir(tmp_path)
    document = config.load("news.yaml")
    window = select(document, document.data.window.date)
    assert window.training_days == (datetime.date(2026, 3, 1), datetime.date(2026, 3, 2))
    assert window.evaluation_days == (datetime.date(2026, 3, 3),)
    assert window.engagement_days == (datetime.date(2026, 2, 27), datetime.date(2026, 2, 28))
    assert [file.num_rows for file in window.training + window.evaluation + window.engagements] == [2] * 5


def test_the_small_preset_selects_the_whole_window_of_its_data(tmp_path):
    document = config.load("small", [f"data.uri={tmp_path}"])
    generate_demo(document.data.generate.size, document.data.generate.num_window_days, document.seed, str(tmp_path))
    window = select(document, document.data.window.date)
    assert (len(window.training_days), len(window.evaluation_days), len(window.engagement_days)) == (10, 1, 45)
    assert (window.missing_days, window.missing_engagement_days) == ((), ())
    assert sum(file.num_rows for file in window.training) == 6000
    assert sum(file.num_rows for file in window.evaluation) == 2000
    assert [file.day for file in window.truth] == [document.data.window.date]


@pytest.mark.parametrize("preset", config.PRESETS)
def test_every_preset_is_a_valid_document_that_fits_a_pipeline_parameter(preset):
    document = config.load(preset)
    assert config.from_parameter(config.to_parameter(document)) == document


def test_the_production_preset_is_for_a_bucket_and_64_gpus():
    document = config.load("production")
    training = document.training
    assert (training.num_nodes, training.nproc_per_node, training.device) == (8, 8, "cuda")
    assert training.num_lanes >= training.world_size * training.num_workers
    assert document.data.uri.startswith("gs://") and document.backbone.fetch.prefix_uri.startswith("gs://")
    assert {table.out_of_range for table in document.data.tables.values()} == {"hash"}
