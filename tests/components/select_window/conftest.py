"""A log of day folders with 100 requests a day, and the configuration that selects from it."""

from collections.abc import Callable

import pytest
from day_folders import write_days

from thaw.components import storage
from thaw.components.config import RunConfig, load


@pytest.fixture
def configure(store_uri: str) -> Callable[..., RunConfig]:
    """Makes a document over the store: a window of 10 days, one evaluation day, a fetched backbone."""

    def configured(*overrides: str) -> RunConfig:
        plain = ["data.truth_path=null", "data.items=null", "backbone.pretrain=null", "backbone.fetch={uri: x}"]
        return load("small", [f"data.uri={store_uri}", *plain, *overrides])

    return configured


@pytest.fixture
def requests_uri(store_uri: str) -> str:
    """The request log: the window's 10 days, and two days from D on."""
    uri = storage.join(store_uri, "requests")
    write_days(uri, range(-10, 2))
    return uri
