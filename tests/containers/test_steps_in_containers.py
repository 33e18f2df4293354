import json

import pytest
from docker_engine import read

from thaw.components.config.document import MAX_PARAMETER_BYTES

# The first test builds the image.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


def test_each_step_runs_in_a_container_of_its_own_to_the_report(image, volume, played):
    assert [step.task for step in played.steps] == [
        "select-window", "prepare-backbone", "train-frozen", "train-cotrain", "evaluate",
    ]  # fmt: skip
    assert {step.image for step in played.steps} == {"thaw:test"}
    report = played.outputs["evaluate"]["artifacts"]["report"]["artifacts"][0]
    assert "<svg" in read(image, volume, report["uri"])
    for outputs in played.outputs.values():
        assert len(json.dumps(outputs).encode()) < MAX_PARAMETER_BYTES
    for stage in ("train-frozen", "train-cotrain"):
        manifest = json.loads(read(image, volume, f"{played.run_uri}/{stage}/attempt-1/manifest.json"))
        assert manifest["figures"]["num_rows"] > 0
