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
