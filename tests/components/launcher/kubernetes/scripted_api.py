"""An API server that does what a test tells it to: a real HTTP server, for PyTorchJobs, their pods, logs and events.

It keeps jobs as a server does (uid, resourceVersion, 404, 409, merge patches, preconditions). What becomes of a job is
scripted: each look at it shows the next of its states, the last one for ever. So is what goes wrong on the way.
"""

import contextlib
import copy
import datetime
import json
import re
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import yaml

JOBS = re.compile(r"/apis/kubeflow\.org/v1/namespaces/([^/]+)/pytorchjobs(?:/([^/]+))?")
OTHERS = re.compile(r"/api/v1/namespaces/([^/]+)/(pods|events)(?:/([^/]+)/log)?")
TIME = "2026-03-02T06:00:{:02}.000000001Z"


@dataclass(frozen=True)
class PodState:
    """A pod of a job, as far as a launcher looks at it."""

    replica: str
    phase: str = "Running"
    exit_code: int | None = None
    reason: str | None = None
    """Of the container's end."""
    finished_at: str | None = None
    waiting: tuple[str, str] | None = None
    """Reason and message of the container's waiting."""
    unschedulable: str | None = None
    status: tuple[str, str] | None = None
    """Reason and message of the pod's own status."""
    restarts: int = 0
    has_containers: bool = True
    uid: str = "1"
    deleted: bool = False

    def document(self, job: str) -> dict[str, Any]:
        state: dict[str, Any] = {"running": {}}
        if self.phase in ("Succeeded", "Failed"):
            ended = {"exitCode": self.exit_code or 0, "reason": self.reason or "Error", "finishedAt": self.finished_at}
            state = {"terminated": ended}
        elif self.phase == "Pending":
            reason, message = self.waiting or ("ContainerCreating", None)
            state = {"waiting": {"reason": reason, "message": message}}
        status: dict[str, Any] = {"phase": self.phase}
        if self.unschedulable:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            status["conditions"] = [condition | {"message": self.unschedulable}]
        elif self.has_containers:
            status["containerStatuses"] = [{"name": "pytorch", "restartCount": self.restarts, "state": state}]
        if self.status:
            status["reason"], status["message"] = self.status
        labels = {"training.kubeflow.org/job-name": job}
        metadata: dict[str, Any] = {"name": f"{job}-{self.replica}", "uid": self.uid, "labels": labels}
        if self.deleted:
            metadata["deletionTimestamp"] = "2026-03-02T06:00:00Z"
        return {"metadata": metadata, "status": status}


BOTH_RUN = (PodState("master-0"), PodState("worker-0"))


@dataclass(frozen=True)
class JobState:
    """What a PyTorchJob shows at one look."""

    conditions: tuple[tuple[str, str], ...] = ()
    """Type and status, in the order of the list."""
    pods: tuple[PodState, ...] = ()
    suspend: bool | None = None
    """The spec's field, where a queue changes it."""
    act: Callable[[dict[str, Any]], None] | None = None
    """Called with the job when it comes to this state."""
    gone: bool = False
    failed_kind: str | None = None
    """The replica type that the status counts a failed replica of."""


def condition(*types: str) -> tuple[tuple[str, str], ...]:
    """A job's conditions after it went through `types`, as operator 1.9 keeps them (pkg/util/status.go)."""
    found: dict[str, str] = {}
    excludes = {"Running": ["Restarting"], "Restarting": ["Running"], "Succeeded": ["Running"], "Failed": ["Running"]}
    for each in types:
        found.pop(each, None)
        found |= {other: "False" for other in excludes.get(each, []) if other in found}
        found[each] = "True"
    return tuple(found.items())


@dataclass
class Fault:
    """What goes wrong with the next requests of a kind."""

    method: str
    path: str
    """A pattern for part of it."""
    kind: Literal["answer", "reset", "hang", "cut"] = "answer"
    """What comes instead of the right answer; `cut` is half of one."""
    done: bool = False
    """Whether what is asked for is done all the same."""
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "scripted"
    reason: str = ""
    page: str | None = None
    """Plain text that comes in place of a Status."""
    times: int = 1


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients are killed, and connections reset, on purpose."""


class ScriptedApi:
    """The server, while `serving` runs.

    Attributes:
        script: States of every job that is created.
        faults: What goes wrong; the first that fits is taken, and one of its times with it.
        jobs: By name.
        logs: Lines by pod's name.
        lines_at_once: After so many lines a followed log is cut off.
        events: Documents.
        requests: All that came, in order.
        token: What has to be brought.
    """

    def __init__(self, folder: Path):
        self.script: list[JobState] = [JobState()]
        self.faults: list[Fault] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, list[str]] = {}
        self.lines_at_once = 1000
        self.events: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.token = "good"
        self.token_path = folder / "token"
        self.kubeconfig = folder / "kubeconfig"
        self._looks: dict[str, int] = {}
        self._state: dict[str, JobState] = {}
        self._version = 0
        self._changed = threading.Condition()
        self._ended = threading.Event()

    def made(self, method: str, part: str = "") -> list[Request]:
        """The requests of a kind so far."""
        return [each for each in self.requests if each.method == method and part in each.path]

    def until(self, holds: Callable[[], Any]) -> None:
        """Return when requests have come that make something true."""
        with self._changed:
            assert self._changed.wait_for(holds, timeout=120), self.requests

    def add(self, job: dict[str, Any], looks: int = 0) -> dict[str, Any]:
        """A job, as if it had been created."""
        self._version += 1
        name = job["metadata"]["name"]
        stored = copy.deepcopy(job)
        stored["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "resourceVersion": str(self._version),
            "creationTimestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        self.jobs[name] = stored
        self._looks[name] = looks
        self._state[name] = JobState()
        return stored

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve requests, at the address that `kubeconfig` has."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _handle(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                parts = urlsplit(self.path)
                request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), body)
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    api._serve(self, request)
                with api._changed:
                    api._changed.notify_all()

            do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        self.token_path.write_text(self.token)
        self.kubeconfig.write_text(_kubeconfig(server.server_address[1], self.token_path))
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            fault = next((each for each in self.faults if each.times and _fits(each, request)), None)
            if fault:
                fault.times -= 1
        if handler.headers.get("Authorization") != f"Bearer {self.token}":
            self.token_path.write_text(self.token)  # As the kubelet does with the token of a pod, ahead of its end.
            return _answer(handler, *_status(401, "Unauthorized"))
        if fault is None or fault.done:
            with self._changed:
                answer = self._done(handler, request)
            if answer is None:
                return None
            if fault is None:
                return _answer(handler, *answer)
        if fault.kind == "hang":
            self._ended.wait(60)
        elif fault.kind == "cut":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{")
            handler.close_connection = True
        elif fault.kind == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
        else:
            status = _status(fault.status, fault.message, fault.reason)
            _answer(handler, fault.status, status[1] if fault.page is None else fault.page, fault.headers)
        return None

    def _done(self, handler: BaseHTTPRequestHandler, request: Request) -> tuple[int, Any] | None:
        if match := JOBS.fullmatch(request.path):
            return self._jobs(request, match[2])
        if request.path == "/readyz":
            return 200, "ok"
        match = OTHERS.fullmatch(request.path)
        assert match, request.path
        if match[2] == "events":
            about = request.query["fieldSelector"].removeprefix("involvedObject.name=")
            return 200, {"items": [event for event in self.events if event["involvedObject"]["name"] == about]}
        if match[3]:
            return self._log(handler, match[3], request.query)
        job = request.query["labelSelector"].removeprefix("training.kubeflow.org/job-name=")
        state = self._state.get(job, JobState())
        return 200, {"items": [pod.document(job) for pod in state.pods]}

    def _jobs(self, request: Request, name: str | None) -> tuple[int, Any]:
        if name is None:
            name = request.body["metadata"]["name"]
            if name in self.jobs:
                return _status(409, f'pytorchjobs.kubeflow.org "{name}" already exists', "AlreadyExists")
            return 201, self.add(request.body)
        if request.method == "GET" and name in self.jobs:
            self._look(name)
        if name not in self.jobs:
            return _status(404, f'pytorchjobs.kubeflow.org "{name}" not found', "NotFound")
        metadata = self.jobs[name]["metadata"]
        if request.method == "PATCH":
            change = dict(request.body["metadata"])
            if change.pop("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
                return _status(409, "the object has been modified", "Conflict")
            self._version += 1
            metadata |= change | {"resourceVersion": str(self._version)}
        elif request.method == "DELETE":
            if any(metadata[name] != value for name, value in request.body["preconditions"].items()):
                return _status(409, "a precondition does not match", "Conflict")
            return 200, self.jobs.pop(name)
        return 200, self.jobs[name]

    def _look(self, name: str) -> None:
        """Bring a job to its next state."""
        state = self.script[min(self._looks[name], len(self.script) - 1)]
        self._looks[name] += 1
        if state is self._state[name]:
            return
        self._state[name] = state
        job = self.jobs[name]
        if state.gone:
            del self.jobs[name]
        if state.conditions:
            job["status"] = {
                "conditions": [
                    {"type": kind, "status": status, "reason": f"PyTorchJob{kind}", "message": f"{kind} as scripted"}
                    for kind, status in state.conditions
                ],
                "replicaStatuses": {state.failed_kind: {"failed": 1}} if state.failed_kind else {},
            }
        if state.suspend is not None:
            job["spec"]["runPolicy"]["suspend"] = state.suspend
        if state.act:
            state.act(job)

    def _log(self, handler: BaseHTTPRequestHandler, pod: str, query: dict[str, str]) -> tuple[int, Any] | None:
        if pod not in self.logs:
            return _status(400, f'container "pytorch" in pod "{pod}" is waiting to start: ContainerCreating')
        lines = [(TIME.format(second), line) for second, line in enumerate(self.logs[pod])]
        if since := query.get("sinceTime"):  # To the second.
            lines = [(time, line) for time, line in lines if time[:19] >= since[:19]]
        lines = lines[-int(query.get("tailLines", len(lines))) :]
        if query.get("follow") == "true":
            lines = lines[: self.lines_at_once]
        text = [f"{time} {line}" if query.get("timestamps") else line for time, line in lines]
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for line in text:
            data = f"{line}\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")
        return None


def _fits(fault: Fault, request: Request) -> bool:
    return fault.method == request.method and re.search(fault.path, request.path) is not None


def _status(code: int, message: str, reason: str = "") -> tuple[int, Any]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _answer(handler: BaseHTTPRequestHandler, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
    data = (document if isinstance(document, str) else json.dumps(document)).encode()
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": len(data), **(headers or {})}.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(data)


def _kubeconfig(port: int, token_path: Path) -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "scripted",
            "contexts": [{"name": "scripted", "context": {"cluster": "scripted", "user": "launcher"}}],
            "clusters": [{"name": "scripted", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "launcher", "user": {"tokenFile": str(token_path)}}],
        }
    )
