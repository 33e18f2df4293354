"""A scripted API server, and launchers whose time passes only while they pause."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from launcher_jobs import stage_job
from scripted_api import ScriptedApi

from thaw.components import storage
from thaw.components.config import load
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.job import TrainingJob
from thaw.components.launcher.kubernetes import run


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApi]:
    """The server, and this process's kubeconfig leads to it."""
    api = ScriptedApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    for name in ("KFP_POD_NAME", "KFP_POD_UID", "POD_NAME", "POD_UID"):
        monkeypatch.delenv(name, raising=False)
    with api.serving():
        yield api


@dataclass
class Launcher:
    """Launches jobs in this process.

    Attributes:
        job: What `run` has run; polls each second, waits 5 s for a start and 20 s for an end.
        now_s: The time. It passes in pauses alone.
        pauses: All of them.
        lines: Of the Master's log, and of those of failed replicas.
    """

    folder: Path
    job: TrainingJob
    now_s: float = 0.0
    pauses: list[float] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def uri(self) -> Path:
        """Folder of the attempt."""
        return Path(self.job.spec.output_uri)

    def with_job(self, *overrides: str, attempt: int = 1, **changes: Any) -> "Launcher":
        """The same with another job."""
        limits = ("cluster.poll_s=1", "cluster.start_timeout_s=5", "cluster.deadline_s=20")
        config = load("small", [*limits, *overrides])
        output = self.folder / "train-frozen" / f"attempt-{attempt}"
        return Launcher(self.folder, stage_job(config, attempt=attempt, output_uri=str(output), **changes))

    def run(self) -> None:
        """What `launch` does with it, up to the figures."""
        if not self.uri.exists():
            storage.create_json(self.job.spec_uri, self.job.spec.model_dump(mode="json"))
        manifest = pytorchjob.render(self.job)
        run.run(self.job, manifest, self.lines.append, clock=lambda: self.now_s, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    """A launcher of one job."""
    return Launcher(tmp_path, stage_job(load("small"))).with_job()


@pytest.fixture
def finished(launcher: Launcher) -> Callable[[dict[str, Any]], None]:
    """What rank 0 does last."""

    def write(job: dict[str, Any]) -> None:
        spec_uri = job["metadata"]["annotations"]["thaw/spec-uri"]
        storage.write_json(spec_uri.replace("job.json", "result.json"), {"num_rows": 7})

    return write
