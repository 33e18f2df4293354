import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def instructions(device):
    """What a Dockerfile does; not what it says of itself, and not the variables for a driver."""
    text = (ROOT / f"images/Dockerfile.{device}").read_text().replace(f"{device}.lock", "LOCK")
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace(" \\\n    NVIDIA_DRIVER_CAPABILITIES=compute,utility", "")
    return re.sub(r'image\.description="[^"]*"', 'image.description=""', text)


def test_the_images_for_cpus_and_gpus_are_built_alike_from_their_own_locks():
    assert instructions("cpu") == instructions("cuda")
    assert instructions("cpu").count("LOCK") == 2


def test_versions_stand_in_pyproject_and_the_locks_alone():
    assert not re.search(r"==\d|\b\d+\.\d+\.\d+\b", instructions("cpu"))


def test_what_is_sent_to_the_engine_is_named_file_by_file():
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {
        *("pyproject.toml", "README.md", "LICENSE", "images/*.lock"),
        *(".src", "components", "pipelines"),
    }
