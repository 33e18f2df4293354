"""The data sets that Thaw can make: a run whose configuration asks for one gets it before its first step."""

from typing import Literal

from rich.console import Console

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.data import DemoData

Size = Literal["S", "M", "V3"]


def with_data(config: RunConfig, root: str, console: Console) -> RunConfig:
    """The configuration with `data.uri` set; the data set is made first where `data.generate` asks for it.

    Raises:
        ValueError, OSError: the data set cannot be made, in words.
    """
    generate = config.data.generate
    if config.data.uri is not None or generate is None:
        return config
    uri = data_uri(config, root)
    with console.status(f"data set {uri}"):
        if isinstance(generate, DemoData):
            make_demo(generate.size, generate.num_window_days, config.seed, root)
        else:
            make_movielens(root)
    return config.model_copy(update={"data": config.data.model_copy(update={"uri": uri})})


def data_uri(config: RunConfig, root: str) -> str:
    """Where the data of a run lies, made or not."""
    generate = config.data.generate
    if config.data.uri is not None or generate is None:
        assert config.data.uri is not None
        return config.data.uri
    if isinstance(generate, DemoData):
        return _demo_uri(generate.size, generate.num_window_days, config.seed, root)
    return _movielens_uri(root)


def make_demo(size: Size, num_window_days: Literal[10, 20], seed: int, root: str) -> str:
    """Generate a demo log where it is not there yet; its folder."""
    from thaw.components.datasets.demo import generate_demo

    uri = _demo_uri(size, num_window_days, seed, root)
    generate_demo(size, num_window_days, seed, uri)
    return uri


def make_movielens(root: str) -> str:
    """Fetch MovieLens-100k where it is not there yet; its folder."""
    from thaw.components.datasets.movielens import fetch_movielens

    uri = _movielens_uri(root)
    fetch_movielens(uri)
    return uri


def _demo_uri(size: str, num_window_days: int, seed: int, root: str) -> str:
    return storage.join(root, "data", f"demo-{size}-{num_window_days}-days-seed-{seed}")


def _movielens_uri(root: str) -> str:
    return storage.join(root, "data", "movielens-100k")
