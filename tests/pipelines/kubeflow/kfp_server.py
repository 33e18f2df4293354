"""A server of Kubeflow Pipelines as its clients meet it, on localhost: keeps experiments, runs and recurring runs.

Every body is read by the official models, the pipeline in it by its protobuf, and an unknown key anywhere is a 400.
Time is what a test says it is. `trigger` does what Kubeflow's controller of scheduled workflows does with the recurring
runs (kubeflow/pipelines, backend/src/crd/controller/scheduledworkflow/util: scheduled_workflow.go, cron_schedule.go),
with a reading of cron of its own.
"""

import datetime
import json
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kfp_server_api
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

API = "/apis/v2beta1"
ACTIVE = ("PENDING", "RUNNING", "PAUSED", "CANCELING")
Document = dict[str, Any]


class BadRequestError(Exception):
    """What the server answers with a 400."""


@dataclass
class Fault:
    """What befalls the next requests that match."""

    method: str
    """Or `*`."""
    path: str
    """A regular expression for the start of the path below `API`."""
    status: int | None = None
    """The answer; None drops the connection without one."""
    after_effect: bool = False
    times: int = 1
    body: str = '{"error": "try later", "code": 14, "message": "the server is overloaded"}'


@dataclass
class KfpServer:
    now: datetime.datetime = datetime.datetime(2026, 3, 2, 12, tzinfo=datetime.UTC)
    health: Document = field(default_factory=lambda: {"multi_user": False, "tag_name": "2.17.0", "commit_sha": "x"})
    experiments: list[Document] = field(default_factory=list)
    runs: list[Document] = field(default_factory=list)
    recurring: list[Document] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path with its query, body."""
    faults: list[Fault] = field(default_factory=list)
    on_get_run: Callable[[Document], None] | None = None
    """Is shown each run that is asked for, before it is answered, and may change it."""
    before: Callable[[str, str], None] | None = None
    """Is told method and path of each request, before it has an effect."""
    tokens: list[str | None] = field(default_factory=list)

    def __enter__(self) -> "KfpServer":
        self.hang = threading.Event()
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.host = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *error: object) -> None:
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()

    def writes(self) -> list[tuple[str, str, Any]]:
        """The requests that change something."""
        return [request for request in self.requests if request[0] != "GET"]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Any:
        if path == "/healthz":
            return self.health
        kind, _, name = path.strip("/").partition("/")
        name, _, verb = name.partition(":")
        items = {"experiments": self.experiments, "runs": self.runs, "recurringruns": self.recurring}[kind]
        if method == "GET" and not name:
            return _page(items, "recurringRuns" if kind == "recurringruns" else kind, query)
        if method == "POST" and not name:
            return {
                "experiments": self._make_experiment,
                "runs": self._make_run,
                "recurringruns": self._make_recurring,
            }[kind](body)
        item = next((item for item in items if name in item.values()), None)
        if item is None:
            raise KeyError(f"{kind} {name}")
        if method == "DELETE":
            if query.get("propagation_policy") != "ORPHAN":
                for run in self.runs:  # as Kubernetes does with what the schedule owns
                    if run.get("recurring_run_id") == name and run["state"] in ACTIVE:
                        run["state"] = "CANCELED"
            items.remove(item)
            return {}
        if verb:
            item["mode"] = {"enable": "ENABLE", "disable": "DISABLE"}[verb]
            return {}
        if kind == "runs" and self.on_get_run is not None:
            self.on_get_run(item)
        return item

    def _make_experiment(self, body: Document) -> Document:
        _check_model(body, "V2beta1Experiment")
        made = {"experiment_id": _id(), "created_at": _text(self.now), **body}
        if any(other["display_name"] == made["display_name"] for other in self.experiments):
            raise BadRequestError("Already exist error: The name is taken")
        self.experiments.append(made)
        return made

    def _make_run(self, body: Document) -> Document:
        _check_model(body, "V2beta1Run")
        self._check_pipeline(body)
        made = {"run_id": _id(), "created_at": _text(self.now), "state": "PENDING", **body}
        self.runs.append(made)
        return made

    def _make_recurring(self, body: Document) -> Document:
        _check_model(body, "V2beta1RecurringRun")
        self._check_pipeline(body)
        _cron(body["trigger"]["cron_schedule"]["cron"])
        if not 1 <= int(body["max_concurrency"]) <= 10:
            raise BadRequestError("The max concurrency must be between 1 and 10")
        made = {"recurring_run_id": _id(), "created_at": _text(self.now), **body}
        self.recurring.append(made)
        return made

    def _check_pipeline(self, body: Document) -> None:
        if body.get("experiment_id") not in {item["experiment_id"] for item in self.experiments}:
            raise BadRequestError(f"no experiment {body.get('experiment_id')!r}")
        document = body["pipeline_spec"]
        spec = document.get("pipeline_spec", document)
        json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
        json_format.ParseDict(document.get("platform_spec", {}), pipeline_spec_pb2.PlatformSpec())

    def trigger(self, end_as: str = "SUCCEEDED") -> list[Document]:
        """Let the controller look at each recurring run once, at `now`; the runs that it makes."""
        made = []
        for item in self.recurring:
            if item["mode"] != "ENABLE":
                continue
            mine = [run for run in self.runs if run.get("recurring_run_id") == item["recurring_run_id"]]
            active = sum(run["state"] in ACTIVE for run in mine)
            schedule = item["trigger"]["cron_schedule"]
            start = _instant(schedule["start_time"]) if "start_time" in schedule else None
            last = max((_instant(run["scheduled_at"]) for run in mine), default=start or _instant(item["created_at"]))
            begin = max(last, start or last)
            due = _ticks(schedule["cron"], begin, self.now)
            if not due or active >= int(item["max_concurrency"]):
                continue
            tick = due[-1] if item["no_catchup"] else due[0]
            run = {
                "run_id": _id(),
                "display_name": f"{item['display_name']}-{len(mine) + 1}",
                "experiment_id": item["experiment_id"],
                "recurring_run_id": item["recurring_run_id"],
                "pipeline_spec": item["pipeline_spec"],
                "runtime_config": item["runtime_config"],
                "created_at": _text(self.now),
                "scheduled_at": _text(tick),
                "state": end_as,
            }
            self.runs.append(run)
            made.append(run)
        return made


def _handler(server: KfpServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_DELETE(self) -> None:
            self._serve("DELETE")

        def _serve(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            url = urlsplit(self.path)
            path = url.path.removeprefix(API)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            with server._lock:
                server.requests.append((method, self.path.removeprefix(API), body))
                server.tokens.append(self.headers.get("authorization"))
                if server.before is not None:
                    server.before(method, path)
                fault = next(
                    (fault for fault in server.faults if fault.method in ("*", method) and re.match(fault.path, path)),
                    None,
                )
                if fault is not None:
                    fault.times -= 1
                    if not fault.times:
                        server.faults.remove(fault)
                    if not fault.after_effect:
                        self._fail(fault)
                        return
                try:
                    status, answer = 200, server.answer(method, path, query, body)
                except KeyError as error:
                    status, answer = 404, {"error": "not found", "code": 5, "message": f"{error.args[0]} not found"}
                except (BadRequestError, json_format.ParseError) as error:
                    status, answer = 400, {"error": "invalid", "code": 3, "message": str(error)}
            if fault is not None:
                self._fail(fault)
                return
            self._send(status, json.dumps(answer).encode())

        def _fail(self, fault: Fault) -> None:
            if fault.status is None:
                server.hang.wait(0.01)
                self.close_connection = True
            elif fault.status == 0:
                server.hang.wait()  # as a server that has stopped in the middle
                self.close_connection = True
            else:
                self._send(fault.status, fault.body.encode())

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status == 302:
                self.send_header("Location", "/dex/login")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return Handler


def _check_model(body: Document, name: str) -> None:
    """Reads a body by an official model, which takes an unknown key for nothing, and refuses that key."""

    class Response:
        data = json.dumps(body)

    try:
        made = kfp_server_api.ApiClient().deserialize(Response, name)
    except ValueError as error:
        raise BadRequestError(f"{name}: {error}") from error
    sent = kfp_server_api.ApiClient().sanitize_for_serialization(made)
    for key, value in body.items():
        if key not in sent:
            raise BadRequestError(f"{name}: unknown key {key}")
        if isinstance(value, dict) and key not in ("pipeline_spec",) and set(value) - set(sent[key]):
            raise BadRequestError(f"{name}.{key}: unknown keys {set(value) - set(sent[key])}")


def _page(items: list[Document], key: str, query: dict[str, str]) -> Document:
    for predicate in json.loads(query.get("filter", "{}")).get("predicates", []):
        key_of, wanted = predicate["key"], predicate["stringValue"]
        fits = {"EQUALS": str.__eq__, "IS_SUBSTRING": str.__contains__}[predicate["operation"]]
        items = [item for item in items if fits(item[key_of], wanted)]
    if "experiment_id" in query:
        items = [item for item in items if item["experiment_id"] == query["experiment_id"]]
    by, _, order = query.get("sort_by", "created_at").partition(" ")
    items = sorted(items, key=lambda item: item[by], reverse=order == "desc")
    begin, size = int(query.get("page_token") or 0), int(query.get("page_size", 10))
    page = {key: items[begin : begin + size], "total_size": len(items)}
    return page | ({"next_page_token": str(begin + size)} if begin + size < len(items) else {})


def _cron(text: str) -> list[int | None]:
    """The fields of a cron of numbers and stars."""
    fields = text.split()
    if len(fields) != 6:
        raise BadRequestError(f"Schedule cron is not a valid cron expression: {text}")
    return [None if part == "*" else int(part) for part in fields]


def _ticks(text: str, after: datetime.datetime, until: datetime.datetime) -> list[datetime.datetime]:
    """The ticks in (after, until] of a cron with one time of day, found by a look at every day."""
    second, minute, hour, day, month, weekday = _cron(text)
    assert second is not None and minute is not None and hour is not None
    ticks, at = [], after.replace(hour=hour, minute=minute, second=second, microsecond=0)
    while at <= until:
        wanted = ((day, at.day), (month, at.month), (weekday, at.isoweekday() % 7))
        if at > after and all(want is None or want == found for want, found in wanted):
            ticks.append(at)
        at += datetime.timedelta(days=1)
    return ticks


def _id() -> str:
    return str(uuid.uuid4())


def _instant(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def _text(instant: datetime.datetime) -> str:
    return instant.strftime("%Y-%m-%dT%H:%M:%SZ")
