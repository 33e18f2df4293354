"""An API server that knows PyTorchJobs: lists them page by page by their labels, and deletes them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from launcher_jobs import stage_job
from slow_server import Handler, SlowServer

from thaw.components.config import load
from thaw.components.launcher import pytorchjob

NAMESPACE = "team"
CONFIG = load("small")


def stored_job(attempt_uri: str | Path, run_id: str, *conditions: str, **metadata: Any) -> dict[str, Any]:
    """A PyTorchJob of an attempt as the server has it, with these conditions."""
    manifest = pytorchjob.render(stage_job(CONFIG, run_id=run_id, output_uri=str(attempt_uri)))
    manifest["metadata"] |= {"uid": f"uid-{run_id}", "creationTimestamp": "2026-03-02T06:00:00Z", **metadata}
    manifest["status"] = {"conditions": [{"type": type_, "status": "True"} for type_ in conditions]}
    return manifest


class JobsServer(SlowServer):
    """The server.

    Attributes:
        jobs: By name.
        forbidden: Methods that nobody may use.
    """

    def __init__(self, jobs: list[dict[str, Any]], delay_s: float = 0):
        super().__init__(_Jobs, delay_s)
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        self.forbidden: set[str] = set()

    def kubeconfig(self, folder: Path) -> str:
        """Writes the kubeconfig that leads here; gives its path."""
        path = folder / "kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": NAMESPACE}}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)


@contextmanager
def at_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., JobsServer]]:
    """Gives what starts a server with jobs, and has KUBECONFIG lead to it."""
    with ExitStack() as stack:

        def serve(*jobs: dict[str, Any]) -> JobsServer:
            server = JobsServer(list(jobs))
            stack.enter_context(server.at_work())
            monkeypatch.setenv("KUBECONFIG", server.kubeconfig(folder))
            return server

        yield serve


class _Jobs(Handler):
    server: JobsServer

    def answer(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        folder = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
        name = url.path.removeprefix(folder).strip("/")
        if not url.path.startswith(folder) or (self.command == "DELETE" and not name):
            return _status(404, "the server could not find the requested resource")
        if self.command in self.server.forbidden:
            return _status(403, f'User "me" cannot {self.command.lower()} resource "pytorchjobs"')
        if self.command == "GET" and not name:
            return 200, {"Content-Type": "application/json"}, json.dumps(self._page(query)).encode()
        job = self.server.jobs.get(name)
        if job is None:
            return _status(404, f'pytorchjobs.kubeflow.org "{name}" not found', "NotFound")
        if self.command == "GET":
            return 200, {"Content-Type": "application/json"}, json.dumps(job).encode()
        if json.loads(body)["preconditions"]["uid"] != job["metadata"]["uid"]:
            return _status(409, "the UID in the precondition does not match the UID in record")
        del self.server.jobs[name]
        return _status(200, "")

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        label, _, value = query["labelSelector"].partition("=")
        found = [job for job in self.server.jobs.values() if job["metadata"]["labels"].get(label) == value]
        first, limit = int(query.get("continue", 0)), int(query["limit"])
        following = {"continue": str(first + limit)} if first + limit < len(found) else {}
        return {"kind": "PyTorchJobList", "metadata": following, "items": found[first : first + limit]}


def _status(code: int, message: str, reason: str = "") -> tuple[int, dict[str, str], bytes]:
    document = {"kind": "Status", "reason": reason, "message": message}
    return code, {"Content-Type": "application/json"}, json.dumps(document).encode()
