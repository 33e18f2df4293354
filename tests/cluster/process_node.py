"""A node whose pods are processes of this machine, for an API server that has no nodes.

It plays all that is missing there: the scheduler, which gives it every pod of its namespace; the kubelet, which runs
the pods, patches their status and serves their logs; and the garbage collection by ownerReferences. A pod's image,
volumes and limits are a real node's matter. The names of services resolve nowhere, so the Master's is replaced by this
machine's address, and its port by a free one.
"""

import datetime
import http.server
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
from api_server import JOBS, PODS, SERVICES, Api, path
from job_status import now
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

POLL_S = 0.2
_MARK = "POD_OF_PROCESS_NODE"
"""Variable that all processes of a pod inherit, with its uid."""
Object = dict[str, Any]
_log = logging.getLogger(__name__)


class ProcessNode:
    """The node.

    Args:
        api: Where it is a node, with the rights of an administrator.
        namespace: Whose pods it runs.
        folder: For logs and the files of service accounts.
        env: Added to the environment of every pod.
    """

    def __init__(self, api: Api, namespace: str, folder: Path, env: Mapping[str, str]):
        self.name = f"processes-of-{namespace}"
        self._api = api
        self._namespace = namespace
        self._folder = folder
        self._env = env
        self._running: dict[str, _Container] = {}
        self._ports: dict[str, str] = {}

    @contextmanager
    def at_work(self) -> Iterator["ProcessNode"]:
        """The node is there and ready while the block runs; all that it started is killed at its end."""
        stop = threading.Event()
        with _log_server(self._folder) as port:
            self._register(port)
            thread = threading.Thread(target=self._work, args=[stop], name=self.name, daemon=True)
            thread.start()
            try:
                yield self
            finally:
                stop.set()
                thread.join()
                for uid in self._running:
                    kill(uid)
                self._api.delete(None, "nodes", self.name)

    def _register(self, port: int) -> None:
        self._api.create(None, "nodes", {"metadata": {"name": self.name, "labels": {"pods-are": "processes"}}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}],
        }
        self._api.request("PATCH", path(None, "nodes", self.name, "status"), {"status": status})

    def _work(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_S):
            try:
                self._look()
            except (ApiException, HTTPError) as error:
                _log.warning("tried again soon: %s", error)

    def _look(self) -> None:
        pods = self._api.list(self._namespace, PODS)
        self._collect_garbage(pods)
        for pod in pods:
            try:
                self._tend(pod)
            except ApiException as error:
                if error.status not in (404, 409):  # It is gone, or another; the next look is at what there is then.
                    raise
        left = {pod["metadata"]["uid"] for pod in pods}
        for uid in self._running.keys() - left:  # deleted by force
            del self._running[uid]
            kill(uid)

    def _tend(self, pod: Object) -> None:
        metadata, uid = pod["metadata"], pod["metadata"]["uid"]
        container = self._running.get(uid)
        if "deletionTimestamp" in metadata:
            if container is not None and container.is_alive():
                container.end_within(metadata.get("deletionGracePeriodSeconds", 30))
            else:
                self._api.delete(self._namespace, PODS, metadata["name"], grace_s=0)
        elif "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": metadata["name"]}, "target": target}
            self._api.request("POST", path(self._namespace, PODS, metadata["name"], "binding"), body)
        elif container is None and pod["status"]["phase"] == "Pending":
            self._running[uid] = self._start(pod, num_restarts=0)
            self._report(pod, "Running", self._running[uid])
        elif container is not None and not container.is_alive() and pod["status"]["phase"] == "Running":
            failed, policy = container.exit_code != 0, pod["spec"]["restartPolicy"]
            if policy == "Always" or (policy == "OnFailure" and failed):
                self._running[uid] = self._start(pod, container.num_restarts + 1)
                self._report(pod, "Running", self._running[uid])
            else:
                self._report(pod, "Failed" if failed else "Succeeded", container)

    def _start(self, pod: Object, num_restarts: int) -> "_Container":
        folder = self._folder / pod["metadata"]["name"]
        folder.mkdir(exist_ok=True)
        spec = pod["spec"]["containers"][0]
        env = {**os.environ, **self._env, **self._variables(pod, spec)}
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
        if account := pod["spec"].get("serviceAccountName"):
            env["KUBECONFIG"] = str(self._kubeconfig(account))
        env[_MARK] = pod["metadata"]["uid"]
        program, *arguments = [*spec.get("command", ()), *spec.get("args", ())]
        command = [shutil.which(program, path=env["PATH"]) or program, *arguments]
        return _Container(spec["name"], command, env, folder / "log", num_restarts)

    def _variables(self, pod: Object, container: Object) -> dict[str, str]:
        fields = {"metadata.name": pod["metadata"]["name"], "metadata.uid": pod["metadata"]["uid"]}
        fields["metadata.namespace"] = self._namespace
        variables = {}
        for variable in container.get("env", ()):
            source = variable.get("valueFrom", {}).get("fieldRef")
            variables[variable["name"]] = fields[source["fieldPath"]] if source else variable.get("value", "")
        if address := variables.get("MASTER_ADDR"):
            if address not in self._ports:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    self._ports[address] = str(free.getsockname()[1])
            variables |= {f"{prefix}MASTER_ADDR": "127.0.0.1" for prefix in ("", "PET_")}
            variables |= {f"{prefix}MASTER_PORT": self._ports[address] for prefix in ("", "PET_")}
        return variables

    def _kubeconfig(self, account: str) -> Path:
        """A kubeconfig with a token of a service account: what a real pod finds in its file system."""
        file = self._folder / f"kubeconfig-{account}"
        if not file.exists():
            uri = path(self._namespace, "serviceaccounts", account, "token")
            token = self._api.request("POST", uri, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
            file.write_text(self._api.kubeconfig_of(token, self._namespace))
        return file

    def _report(self, pod: Object, phase: str, container: "_Container") -> None:
        ready = "True" if phase == "Running" else "False"
        status = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "hostIP": "127.0.0.1",
            "startTime": container.started_at,
            "conditions": [{"type": kind, "status": ready} for kind in ("Ready", "ContainersReady")],
            "containerStatuses": [container.status(pod["spec"]["containers"][0]["image"])],
        }
        self._api.request("PATCH", path(self._namespace, PODS, pod["metadata"]["name"], "status"), {"status": status})

    def _collect_garbage(self, pods: list[Object]) -> None:
        jobs, services = self._api.list(self._namespace, JOBS), self._api.list(self._namespace, SERVICES)
        present = {each["metadata"]["uid"] for each in (*jobs, *pods)}
        for plural, objects in ((JOBS, jobs), (PODS, pods), (SERVICES, services)):
            for each in objects:
                owners = each["metadata"].get("ownerReferences", ())
                if owners and not any(owner["uid"] in present for owner in owners):
                    self._api.delete(self._namespace, plural, each["metadata"]["name"])


def kill(uid: str, but_first: bool = False) -> None:
    """Kill all processes of a pod, or all but the one that it began with."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == uid and not (but_first and process.ppid() == os.getpid()):
                process.kill()


class _Container:
    """A process, with its output in a file: each line with its time."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path, num_restarts: int):
        self.num_restarts = num_restarts
        self.started_at = now()
        self._name = name
        self._mark = env[_MARK]
        self._kill_at: float | None = None
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=[log], daemon=True)
        self._reader.start()

    def _read(self, log: Path) -> None:
        with log.open("wb", buffering=0) as file:
            for line in self._process.stdout:
                file.write(f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%fZ} ".encode() + line)

    @property
    def exit_code(self) -> int:
        """As a container's: 128 and the signal's number where one ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def is_alive(self) -> bool:
        """Whether it runs; one that ends has had its last line read when this says no."""
        if self._process.poll() is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                kill(self._mark)
            return True
        kill(self._mark)  # A container's other processes end with its first.
        self._reader.join()
        return False

    def end_within(self, grace_s: float) -> None:
        """Tell it once to end; it is killed when it takes longer than that."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + grace_s
            self._process.terminate()

    def status(self, image: str) -> Object:
        """As a kubelet reports it."""
        state: Object = {"running": {"startedAt": self.started_at}}
        if not self.is_alive():
            reason = "Error" if self.exit_code else "Completed"
            times = {"startedAt": self.started_at, "finishedAt": now()}
            state = {"terminated": {"exitCode": self.exit_code, "reason": reason, **times}}
        return {
            "name": self._name,
            "image": image,
            "imageID": "",
            "ready": "running" in state,
            "started": "running" in state,
            "restartCount": self.num_restarts,
            "state": state,
        }


@contextmanager
def _log_server(folder: Path) -> Iterator[int]:
    """Serves logs as a kubelet does, so that the API server can hand them out; the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            pod = url.path.split("/")[3]  # /containerLogs/NAMESPACE/POD/CONTAINER
            self.send_response(200)
            self.end_headers()
            for line in _lines(folder / pod / "log", query):
                self.wfile.write(line)

        def log_message(self, *arguments: Any) -> None:
            pass

    make_certificate = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout key -out certificate"
    subprocess.run(make_certificate, shell=True, cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def _lines(log: Path, query: Mapping[str, str]) -> Iterator[bytes]:
    """The lines that a request for a log asks for."""
    lines = log.read_bytes().splitlines(keepends=True) if log.exists() else []
    if since := query.get("sinceTime"):
        start = datetime.datetime.fromisoformat(since)
        lines = [line for line in lines if datetime.datetime.fromisoformat(line.split(b" ", 1)[0].decode()) >= start]
    if tail := query.get("tailLines"):
        lines = lines[-int(tail) :] if int(tail) else []
    for line in lines:
        yield line if query.get("timestamps") == "true" else line.split(b" ", 1)[1]
