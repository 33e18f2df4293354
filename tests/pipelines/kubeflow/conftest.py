"""A server of Kubeflow Pipelines for each test, and a home in which KFP's client finds and leaves nothing."""

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import kfp
import pytest
from click.testing import CliRunner, Result
from kfp_server import KfpServer

from thaw.components.config import RunConfig, load
from thaw.pipelines.cli import main
from thaw.pipelines.kubeflow import connection, package, place, replace, schedule, submit
from thaw.pipelines.kubeflow.address import TOKEN_VARIABLE
from thaw.pipelines.kubeflow.package import Package

DATE = ["--date", "2026-03-02"]
CLUSTER = (
    "data.uri=gs://bucket/feed",
    "data.generate=null",
    "data.truth_path=null",
    f"cluster.image=registry.example/thaw@sha256:{'0' * 64}",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kfp.Client, "_LOCAL_KFP_CONTEXT", str(tmp_path / "home/.config/kfp/context.json"))
    for name in ("KF_PIPELINES_ENDPOINT", "KF_PIPELINES_UI_ENDPOINT", "KUBECONFIG", TOKEN_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAUSES_S", (0, 0))
    monkeypatch.setattr(connection, "PATIENT_PAUSES_S", (0,) * 5)
    monkeypatch.setattr(submit, "SETTLE_S", 0)
    monkeypatch.setattr(replace, "SETTLE_S", 0)


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later than every day of a test, whatever the clock says."""
    monkeypatch.setattr(place, "utc_today", lambda: datetime.date(2030, 1, 1))


@pytest.fixture(scope="session")
def packages() -> dict[str, Package]:
    return {}


@pytest.fixture(autouse=True)
def compiled_once(packages: dict[str, Package], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling the same gives the same, and takes a second under a test's deep stack."""

    def compiled(config: RunConfig, num_retries: int, kind: str) -> Package:
        key = f"{config.recipe.policies} {config.cluster.image} {config.promotion is None} {num_retries} {kind}"
        if key not in packages:
            packages[key] = package.compiled(config, num_retries, kind)
        return packages[key]

    monkeypatch.setattr(submit, "compiled", compiled)
    monkeypatch.setattr(schedule, "compiled", compiled)


@pytest.fixture
def kfp_server() -> Iterator[KfpServer]:
    with KfpServer() as server:
        yield server


@pytest.fixture
def thaw(kfp_server: KfpServer) -> Callable[..., Result]:
    """Runs a verb against the server."""

    def run(*arguments: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--host", kfp_server.host], input=typed)

    return run


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return load("small", CLUSTER)


@pytest.fixture(scope="session")
def config_options() -> list[str]:
    return ["--preset", "small", *(part for override in CLUSTER for part in ("--set", override))]


@pytest.fixture(name="submit")
def submit_verb(thaw: Callable[..., Result], config_options: list[str], gcs_uri: str) -> Callable[..., Result]:
    """Runs `thaw submit` for a day, with a root on the store."""

    def run(*arguments: str, root: str = gcs_uri) -> Result:
        return thaw("submit", *config_options, *DATE, "--root", root, *arguments)

    return run
