"""Calls to the API server: what is tried again and for how long, and what is an error at once."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from thaw.components import events
from thaw.components.launcher.kubernetes.access import connect
from thaw.components.launcher.kubernetes.faults import Fault, faults
from thaw.components.launcher.pytorchjob import GROUP, JOB_LABEL, PLURAL, VERSION

REQUEST_TIMEOUT_S = (10.0, 30.0)
"""To connect, and between two packets of an answer."""
LOG_TIMEOUT_S = (10.0, 120.0)
"""The same for a log that is followed, which may be silent for long."""
PATIENCE_S = 60.0
"""How long a call is tried again, where its caller says nothing else."""

ANYONE = "anyone"
"""Of a job, in place of its owner's uid: whoever owns it."""

_MAX_FIRST_PAGES, _MAX_PAGES = 2, 10
"""Pages in place of a resource's objects, from a server that is ready: at first, and once it has given such objects."""
_MAX_TAIL = 8 << 20
"""Bytes."""
_MAX_PIECE = 64 << 10
_AFTER_END = re.compile(rb"(?<=[\r\n])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\S+ ?")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LONGEST_RETRY_AFTER_S = 300.0
_HINTS = {
    401: "see that the credentials of the kubeconfig, or of the step's service account, are valid",
    403: "give the step's service account this verb on this resource",
}

Answer = TypeVar("Answer")
Object = dict[str, Any]


class ApiError(OSError):
    """The API server refused a request, or no good answer came for too long.

    Attributes:
        status: The HTTP status; None where there was none.
        hint: What to do next.
        leaves_open: Whether what was asked for may have been done all the same.
    """

    def __init__(
        self, what: str, status: int | None, words: str, hint: str | None = None, *, leaves_open: bool = False
    ):
        super().__init__(f"{what}: {words}")
        self.status = status
        self.leaves_open = leaves_open
        self.hint = hint or _HINTS.get(status or 0)


class Api:
    """The PyTorchJobs of a namespace, their pods and what happened to them, as plain documents.

    The official client brings the credentials and the connection.
    """

    def __init__(
        self,
        namespace: str,
        *,
        context: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ):
        self.namespace = namespace
        self._clock = clock
        self._pause = pause
        self._context = context
        self._client = connect(context)
        self._served: set[str] = set()
        """Resources of which there was a good answer."""

    def get_job(self, name: str, patience_s: float = PATIENCE_S) -> Object | None:
        """A PyTorchJob, or None where there is none of that name."""
        return self._ask("get", _JOBS, name, patience_s, lambda: self._get_job(name))

    def list_jobs(self, selector: str, patience_s: float = PATIENCE_S) -> list[Object]:
        """The PyTorchJobs that a label selector names."""
        query = {"labelSelector": selector}
        return self._ask("list", _JOBS, None, patience_s, lambda: self._items(self._path(_JOBS), query))

    def create_job(self, manifest: Object, patience_s: float = PATIENCE_S) -> Object:
        """Create a PyTorchJob; if one of that name is there already, that one, unchanged.

        The answer to a create can be lost when the create was not. So each try but the first looks before it asks.
        """
        name = manifest["metadata"]["name"]
        asked = unanswered = False

        def create() -> Object:
            nonlocal asked, unanswered
            if asked and (found := self._get_job(name)) is not None:
                return found
            asked = True
            try:
                return _job(self._document("POST", self._path(_JOBS), body=manifest))
            except Fault as fault:
                unanswered = unanswered or fault.status is None or fault.status >= 500
                if fault.status != 409:
                    raise
                if (found := self._get_job(name)) is None:
                    # One of that name has just gone, or a quota was written at the same moment.
                    fault.passes = True
                    raise
                return found

        try:
            return self._ask("create", _JOBS, name, patience_s, create)
        except ApiError as error:
            error.leaves_open = error.leaves_open or unanswered
            raise

    def patch_job(self, name: str, change: Object, patience_s: float = PATIENCE_S) -> Object | None:
        """Change fields of a PyTorchJob; a list is replaced as a whole. None where it is gone."""

        def patch() -> Object | None:
            try:
                return _job(self._document("PATCH", self._path(_JOBS, name), body=change))
            except Fault as fault:
                if fault.says_gone(name):
                    return None
                raise

        return self._ask("patch", _JOBS, name, patience_s, patch)

    def delete_job(self, name: str, uid: str, patience_s: float = PATIENCE_S, owner: str | None = ANYONE) -> bool:
        """Delete exactly this PyTorchJob, its pods after it; one that is gone, or another of its name, is left so.

        Args:
            name: The job's name.
            uid: Its uid.
            patience_s: How long to try.
            owner: Delete it only while this is the uid of its owner; None: while it has none.

        Returns:
            Whether it is deleted or gone; False where it has another owner.
        """
        preconditions = {"uid": uid}

        def delete() -> bool:
            found = self._get_job(name) if owner != ANYONE else None
            if found and found["metadata"]["uid"] == uid:
                if owner_uids(found) != ([owner] if owner else []):
                    return False
                # Whoever takes it up in this moment changes it.
                preconditions["resourceVersion"] = found["metadata"]["resourceVersion"]
            body = {"propagationPolicy": "Background", "preconditions": preconditions}
            try:
                _check_deleted(self._document("DELETE", self._path(_JOBS, name), body=body))
            except Fault as fault:
                if fault.status == 409 and (found := self._get_job(name)) and found["metadata"]["uid"] == uid:
                    fault.passes = True
                    raise
                if fault.status != 409 and not fault.says_gone(name):
                    raise
            return True

        return self._ask("delete", _JOBS, name, patience_s, delete)

    def list_pods(self, job: str, patience_s: float = PATIENCE_S) -> list[Object]:
        """The pods of a PyTorchJob."""
        query = {"labelSelector": f"{JOB_LABEL}={job}"}
        return self._ask("list", "pods", None, patience_s, lambda: self._items(self._path("pods"), query))

    def list_events(self, name: str, patience_s: float = PATIENCE_S) -> list[Object]:
        """What Kubernetes has to say of an object of the namespace lately, oldest first."""
        query = {"fieldSelector": f"involvedObject.name={name}"}
        found = self._ask("list", "events", None, patience_s, lambda: self._items(self._path("events"), query))
        return sorted(found, key=lambda event: event.get("lastTimestamp") or event.get("eventTime") or "")

    def log_tail(self, pod: str, container: str, num_lines: int, patience_s: float = PATIENCE_S) -> list[str]:
        """The last lines that a container wrote."""
        query = {"container": container, "tailLines": str(num_lines), "limitBytes": str(_MAX_TAIL)}

        def read() -> list[str]:
            return b"".join(self._stream(self._path("pods", pod, "log"), query)).decode(errors="replace").splitlines()

        return self._ask("get", "pods/log", pod, patience_s, read)

    def log_lines(self, pod: str, container: str, since: str | None, follow: bool) -> Iterator[tuple[str, str]]:
        """What a container writes, line by line, each with its time; ends with the container or the connection.

        A line is given piece by piece where it is long or, as a progress bar's, is written anew after a carriage
        return; all but the first piece have no time.

        Args:
            pod: Name of the pod.
            container: Name of the container.
            since: An earlier line's time; lines of that second come again. None: from the beginning.
            follow: Whether to wait for more.

        Raises:
            ApiError: the connection was lost, or there is no log.
        """
        query = {"container": container, "timestamps": "true", "follow": str(follow).lower()}
        if since is not None:
            query["sinceTime"] = since
        unfinished, begins = b"", True
        try:
            for data in self._stream(self._path("pods", pod, "log"), query, LOG_TIMEOUT_S):
                *pieces, unfinished = _AFTER_END.split(unfinished + data)
                if len(unfinished) > _MAX_PIECE:
                    pieces.append(unfinished)
                    unfinished = b""
                for piece in pieces:
                    time, text = "", piece.decode(errors="replace").rstrip("\r\n")
                    # The kubelet puts words of its own between the container's, without a time.
                    if begins and (match := _TIME.match(text)):
                        time, text = match[0].rstrip(" "), text[match.end() :]
                    if time or text:
                        yield time, text
                    begins = piece.endswith(b"\n")
        except Fault as fault:
            raise self._error("get", "pods/log", pod, fault) from fault

    def _get_job(self, name: str) -> Object | None:
        try:
            return _job(self._document("GET", self._path(_JOBS, name)))
        except Fault as fault:
            if fault.says_gone(name):
                return None
            raise

    def _is_ready(self) -> bool:
        """Whether the server itself answers, and serves all that it has."""
        with suppress(Fault), faults():
            return bool(self._call("GET", "/readyz", None, None).data == b"ok")
        return False

    def _items(self, path: str, query: Mapping[str, str]) -> list[Object]:
        """All of a list, page by page."""
        found: list[Object] = []
        page = dict(query, limit="500")
        while True:
            document = self._document("GET", path, query=page)
            found += document.get("items") or []
            following = (document.get("metadata") or {}).get("continue")
            if not following:
                return found
            page["continue"] = following

    def _path(self, resource: str, *below: str) -> str:
        root = f"/apis/{GROUP}/{VERSION}" if resource == _JOBS else "/api/v1"
        return "/".join([root, "namespaces", self.namespace, resource.partition(".")[0], *below])

    def _document(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        with faults():
            answer = self._call(method, path, query, body).data
        try:
            document = json.loads(answer)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise Fault(f"the answer is no JSON object: {answer[:200]!r}")
        return document

    def _stream(
        self, path: str, query: Mapping[str, str], timeout_s: tuple[float, float] | None = None
    ) -> Iterator[bytes]:
        with faults():
            response = self._call("GET", path, query, None, timeout_s)
            try:
                yield from response.stream(None, decode_content=False)
            finally:
                response.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        timeout_s: tuple[float, float] | None = None,
    ) -> Any:
        """The official client's door that is open to every path, with the answer as it comes."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=timeout_s or REQUEST_TIMEOUT_S,
        )

    def _ask(
        self, verb: str, resource: str, name: str | None, patience_s: float, request: Callable[[], Answer]
    ) -> Answer:
        """The answer to a request, asked again while what is wrong may pass: after growing, bounded, uneven pauses.

        A token may have expired: a refusal of it has the credentials loaded again, at first once, and until the time is
        over where they were good before. A page in place of the server's word that there is no such thing may come from
        a proxy, or from a server that is just starting; if it comes again and again though the server is ready, that
        has no such resource.
        """
        until = self._clock() + patience_s
        renewed = False
        pages_left = _MAX_PAGES if resource in self._served else _MAX_FIRST_PAGES
        for pause_s in _pauses():
            try:
                answer = request()
                self._served.add(resource)
                return answer
            except Fault as fault:
                if fault.status == 401:
                    self._renew()
                    fault.passes = resource in self._served
                    if not renewed:
                        renewed = True
                        continue
                error = self._error(verb, resource, name, fault)
                if fault.passes and fault.status == 404 and self._is_ready():
                    pages_left -= 1
                if not fault.passes or not pages_left:
                    raise error from fault
                if fault.retry_after_s is not None:
                    pause_s = max(pause_s, min(fault.retry_after_s, _LONGEST_RETRY_AFTER_S))
                left_s = until - self._clock()
                if left_s <= 0:
                    words = f"no better answer in {patience_s:.0f} s"
                    raise ApiError(str(error), fault.status, words, error.hint, leaves_open=True) from fault
                pause_s = min(pause_s, left_s)
            events.emit("warning", message=f"{error}; asking again in {pause_s:.0f} s")
            self._pause(pause_s)
        raise AssertionError("pauses have no end")

    def _renew(self) -> None:
        # The file of the token may be in the middle of being replaced: then the next refusal comes here again.
        with suppress(ValueError):
            self._client = connect(self._context)

    def _error(self, verb: str, resource: str, name: str | None, fault: Fault) -> ApiError:
        what = " ".join([verb, resource, *([repr(name)] if name else []), "in namespace", self.namespace])
        hint = None
        if fault.status == 404 and "namespaces " in str(fault):
            hint = "create the namespace, or set cluster.namespace to that of the pipeline"
        elif fault.status == 404 and resource == _JOBS:
            hint = "see that the training operator, or at least its custom resource, is installed"
        return ApiError(what, fault.status, str(fault), hint)


_JOBS = f"{PLURAL}.{GROUP}"


def owner_uids(job: Object) -> list[str]:
    """The uids of a job's owners."""
    return [owner["uid"] for owner in job["metadata"].get("ownerReferences") or []]


def _job(document: Object) -> Object:
    """The document, if it is a PyTorchJob's; a proxy, or a server that is just starting, may answer something else."""
    metadata = document.get("metadata")
    if document.get("kind") != "PyTorchJob" or not isinstance(metadata, dict) or not metadata.get("uid"):
        raise Fault(f"the answer is no PyTorchJob: {json.dumps(document)[:200]}")
    return document


def _check_deleted(answer: Object) -> None:
    """Pass the answer to a DELETE after which the object is gone."""
    if answer.get("kind") not in ("Status", "PyTorchJob"):
        raise Fault(f"the answer tells of no deletion: {json.dumps(answer)[:200]}")
    metadata = answer.get("metadata") or {}
    if metadata.get("deletionTimestamp"):
        held = ", ".join(metadata.get("finalizers") or ["nothing that it names"])
        raise Fault(f"it is marked as deleted, and not gone: it is held by {held}", passes=False)


def _pauses() -> Iterator[float]:
    """Seconds: doubling up to a bound, each in the upper half at random, so that many launchers don't ask in step."""
    longest = _FIRST_PAUSE_S
    while True:
        yield longest * random.uniform(0.5, 1)
        longest = min(2 * longest, _LONGEST_PAUSE_S)
