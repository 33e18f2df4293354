import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import docker_engine
import pytest
from compiled_steps import Step, compiled, play

from thaw.components.config import RunConfig, load, to_parameter

ROOT = Path(__file__).parents[2]
TINY = (
    "data.window.num_days=2",
    "backbone={pretrain: {num_days: 2, num_epochs: 1}}",
    "evaluation.num_train_requests=200",
    "training.log_every_steps=1",
    "cluster.image=thaw:test",
)


@pytest.fixture(scope="session")
def image():
    """The image of the working tree."""
    try:
        answer = subprocess.run(["docker", "info"], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no docker command")
    if answer.returncode:
        pytest.skip(f"no Docker engine answers: {answer.stderr.strip() or answer.stdout.strip()}")
    made = subprocess.run(["make", "images", "IMAGE=thaw:test", "DEVICE=cpu"], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
    return "thaw:test"


@pytest.fixture(scope="session")
def volume(image):
    """A volume that holds a home of the image's user, with a data set in it."""
    with docker_engine.made("volume") as name:
        docker_engine.run(image, ["thaw", "data", "demo", "--size", "S"], *docker_engine.at_home(name))
        yield name


class Played(NamedTuple):
    """A run whose steps were containers."""

    config: RunConfig
    run_uri: str
    steps: list[Step]
    outputs: dict[str, Any]


@pytest.fixture(scope="session")
def played(image, volume, tmp_path_factory):
    """A whole run, each step in a container of its own as its compiled component says, without a network.

    The user is an arbitrary one: some clusters give each namespace user ids of its own.
    """
    run_uri = str(docker_engine.HOME / "runs/r")
    config = load("small", [*TINY, f"data.uri={docker_engine.HOME}/data/demo-S-10-days-seed-0"])
    spec = compiled(config, tmp_path_factory.mktemp("pipeline") / "thaw.yaml")
    steps = []

    def execute(step):
        steps.append(step)
        docker_engine.run(step.image, step.command, *docker_engine.at_home(volume), "--user=12345:54321")
        return json.loads(docker_engine.read(image, volume, step.output_path))

    parameters = {
        "config": to_parameter(config),
        "run_uri": run_uri,
        "date": str(config.data.window.date),
        "backend": "local",
    }
    outputs = play(spec, parameters, str(docker_engine.HOME / "kfp"), execute)
    return Played(config, run_uri, steps, outputs)
