import pytest

from thaw.components.config import ConfigError, load


@pytest.mark.parametrize("name", ["RANK", "MASTER_PORT", "PET_NNODES", "PYTHONUNBUFFERED"])
def test_a_variable_that_the_operator_sets_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster: cluster\.env sets {name}, which the training operator sets"):
        load("small", [f"cluster.env={{{name}: '1'}}"])


@pytest.mark.parametrize(("key", "value"), [("memory", "16 GB"), ("cpu", "two"), ("shm_size", "2gi"), ("memory", "''")])
def test_what_is_no_kubernetes_quantity_is_refused_at_its_place(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.{key}: "):
        load("small", [f"cluster.{key}={value}"])


def test_kubernetes_quantities_pass() -> None:
    overrides = ["cluster.cpu=500m", "cluster.memory=1.5Ti", "cluster.shm_size=200M"]
    assert load("small", overrides).cluster.memory == "1.5Ti"


DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@pytest.mark.parametrize(
    "image",
    [
        "thaw:test",
        "registry.example/thaw:0.1.0-cuda",
        "localhost:5000/team/thaw:v1",
        f"thaw@{DIGEST}",
        f"registry.example:5000/team/thaw:0.1.0@{DIGEST}",
    ],
)
def test_an_image_is_named_by_tag_or_digest(image: str) -> None:
    assert load("small", [f"cluster.image='{image}'"]).cluster.image == image


@pytest.mark.parametrize(
    "image", ["thaw", "registry.example:5000/thaw", "thaw@sha256:0123", f"thaw@md5:{'0' * 32}", "Thaw:1", "thaw: 1", ""]
)
def test_an_image_named_by_neither_is_refused(image: str) -> None:
    with pytest.raises(ConfigError, match=rf"cluster\.image: '{image}' is neither name:tag nor name@sha256:digest"):
        load("small", [f"cluster.image='{image}'"])
