import json
import re
from pathlib import Path

import pytest
from docker_engine import docker, run

# The first test builds the image.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
VERSION = re.search(r'^version = "(.*)"$', PYPROJECT, re.M)[1]


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_packages_are_those_of_the_lock_file_and_no_others(image):
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "images/cpu.lock").read_text(), re.M))
    locked |= {"torch": re.search(r'"torch==(.*)"', PYPROJECT)[1], "thaw": VERSION}
    script = (
        "import json; from importlib.metadata import distributions; "
        "print(json.dumps({each.name: each.version for each in distributions()}))"
    )
    installed = json.loads(run(image, ["python", "-c", script]).stdout)
    assert {normalized(name): version.partition("+")[0] for name, version in installed.items()} == {
        normalized(name): version for name, version in locked.items()
    }


@pytest.mark.parametrize(
    "command",
    [
        ["thaw", "--help"],
        ["thaw", "compile", "--preset", "production", "--output", "/tmp/thaw.yaml"],
        ["torchrun", "--help"],
        ["python", "-c", "import sys; assert sys.version_info[:2] == (3, 11)"],
        ["python3", "-m", "kfp.dsl.executor_main", "--help"],
        ["python3", "-c", "import zoneinfo; zoneinfo.ZoneInfo('Europe/Zurich')"],
        ["sh", "-c", 'touch "$HOME/x" /tmp/x && test "$PYTHONUNBUFFERED" = 1'],
    ],
    ids=" ".join,
)
def test_what_pods_call_is_there_for_any_user(image, command):
    run(image, command, "--user=12345:54321")


def test_the_image_says_what_it_is(image):
    config = json.loads(docker("inspect", image).stdout)[0]["Config"]
    assert config["User"] == "1000"
    labels = {name: config["Labels"][f"org.opencontainers.image.{name}"] for name in ("title", "version", "licenses")}
    assert labels == {"title": "thaw", "version": VERSION, "licenses": "Apache-2.0"}


@pytest.mark.parametrize("path", ["/src", "/root/.cache/pip", "/opt/venv/bin/pip"])
def test_the_image_holds_no_sources_no_cache_and_no_installer(image, path):
    run(image, ["test", "!", "-e", path], "--user=0")
