"""One run of a date, started once."""

import datetime
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import kfp_server_api

from thaw.components import runs, storage
from thaw.components.config import RunConfig, to_parameter
from thaw.components.select_window.logs import wanted_logs
from thaw.pipelines.kubeflow.client import Run, Server
from thaw.pipelines.kubeflow.package import Package, check_arguments, compiled
from thaw.pipelines.kubeflow.place import check_place, check_placement, check_retries

Kind = Literal["whole", "backbone"]
ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
"""States of a run that no other follows."""
MAX_NAME_LENGTH = 120
SETTLE_S = 2.0
"""After a create, before what others created meanwhile is looked for: Kubeflow tells times of creation in seconds."""


@dataclass(frozen=True)
class Placement:
    """Where in Kubeflow runs go, and as whom."""

    experiment: str = "thaw"
    service_account: str | None = None
    """Kubernetes service account of the steps. None: the server's own choice."""
    pipeline_root: str | None = None
    """Where Kubeflow keeps its own artifacts. None: as the server has it."""

    def __post_init__(self) -> None:
        check_placement(self.experiment, self.service_account, self.pipeline_root)


@dataclass(frozen=True)
class Request:
    """A run that is asked for: checked, and not sent yet."""

    config: RunConfig
    root: str
    run_id: str
    date: datetime.date
    placement: Placement
    package: Package
    inputs: Mapping[str, str]
    """Arguments of its pipeline, beside the configuration, the run's folder and the backend."""
    kind: str = "whole"
    parent: runs.Parent | None = None
    """Of a rerun."""

    @property
    def run_uri(self) -> str:
        """Folder of the run."""
        return storage.join(self.root, "runs", self.run_id)

    @property
    def arguments(self) -> dict[str, Any]:
        """What the pipeline is given."""
        return {
            "config": to_parameter(self.config),
            "run_uri": self.run_uri,
            "backend": "kubernetes",
            **self.inputs,
        }

    def body(self, experiment_id: str) -> Run:
        """The request as the API takes it."""
        return Run(
            display_name=self.run_id,
            experiment_id=experiment_id,
            description=f"D = {self.date}, {self.run_uri}",
            pipeline_spec=self.package.document,
            runtime_config=kfp_server_api.V2beta1RuntimeConfig(
                parameters=self.arguments, pipeline_root=self.placement.pipeline_root
            ),
            service_account=self.placement.service_account,
        )


def request(
    config: RunConfig,
    root: str,
    date: datetime.date,
    placement: Placement,
    *,
    run_id: str | None = None,
    num_retries: int = 0,
    kind: str = "whole",
    inputs: Mapping[str, str] | None = None,
    parent: runs.Parent | None = None,
    package: Package | None = None,
) -> Request:
    """A request, checked as far as can be told from here; nothing is written and nothing is sent.

    Args:
        config: The run's document, with `data.uri`.
        root: Where `runs/` lies.
        date: D.
        placement: Where in Kubeflow it goes.
        run_id: Name of the run. None: the document's name, D and a digest of document and kind, so that asking twice
            for the same is asking once.
        num_retries: How often Kubeflow tries a failed step again.
        kind: Which stages the run has.
        inputs: Arguments of its pipeline, beside the configuration, the run's folder and the backend. None: the date.
        parent: Of a rerun.
        package: The compiled pipeline, where another request of the same kind and configuration has it.

    Raises:
        ValueError: the pods can't reach the root or the data, the calendar has no such window, or the pipeline does
            not take these arguments.
    """
    check_place(config, root, kind)
    check_retries(num_retries)
    root = root.rstrip("/")
    wanted_logs(config, str(config.data.uri), date)
    digest = hashlib.sha256(f"{kind} {to_parameter(config)}".encode()).hexdigest()[:6]
    run_id = f"{config.name}-{date}-{digest}" if run_id is None else run_id
    if len(run_id) > MAX_NAME_LENGTH:
        raise ValueError(f"--run-id: {run_id!r} has {len(run_id)} characters, at most {MAX_NAME_LENGTH} fit")
    runs.check_run_id(run_id)
    inputs = {"date": str(date)} if inputs is None else inputs
    package = package or compiled(config, num_retries, kind)
    made = Request(config, root, run_id, date, placement, package, inputs, kind, parent)
    check_arguments(package, made.arguments)
    return made


def submit(
    server: Server, asked: Request, again: bool = False, pause: Callable[[float], None] = time.sleep
) -> tuple[Run, bool]:
    """Start a run that is not there yet; the run, and whether it was started now.

    The run's record is written first: a command that is interrupted in between finds it, and goes on. Of several
    commands that start it at once, the one whose run was created first keeps it, and each other deletes its own.

    Args:
        server: Of Kubeflow.
        asked: The run.
        again: Whether a run of that name that has ended, and not well, is started once more, with its folder: stages
            that are committed stay, the others get another attempt.
        pause: Waits.

    Raises:
        ValueError: a run of that name was begun with another configuration, date or kind.
        ServerError: the server is not there, or refuses.
    """
    found = server.find_runs(asked.run_id)
    for run in found:
        check_same(run, asked)
    extra = {**_claim(asked), "experiment": asked.placement.experiment, "kubeflow": server.host}
    record = runs.open_run(asked.run_uri, asked.config, extra)
    check_record(record, asked)
    # Of a run that a schedule began Kubeflow has the name, and only the record says which it is.
    begun = server.find_run(str(record.extra["kfp_run"])) if "kfp_run" in record.extra else None
    if begun is not None and (begun.state not in ENDED or begun.state == "SUCCEEDED"):
        return begun, False
    if found and not (again and found[0].state in ENDED and found[0].state != "SUCCEEDED"):
        return found[0], False
    made = server.create_run(asked.body(server.experiment(asked.placement.experiment)))
    pause(SETTLE_S)
    known = {run.run_id for run in found}
    started = [made, *(run for run in server.find_runs(asked.run_id) if run.run_id not in known)]
    first = min(started, key=lambda run: (run.created_at, run.run_id))
    if first.run_id == made.run_id:
        return made, True
    server.delete_run(made)
    return first, False


def follow(
    server: Server, run_id: str, say: Callable[[str], None], poll_s: float, pause: Callable[[float], None] = time.sleep
) -> Run:
    """The run when it has ended. Says each state of the run and of its tasks when it changes.

    Raises:
        ServerError: the server has not answered for minutes, or knows no such run.
    """
    states: dict[str, str] = {}
    while True:
        run = server.run(run_id, patient=True)
        details = run.run_details.task_details if run.run_details else None
        tasks = sorted(details or (), key=lambda task: str(task.start_time or task.create_time or ""))
        now = {str(task.display_name): str(task.state) for task in tasks if task.display_name and task.state}
        now["run"] = str(run.state or "PENDING")
        for name, state in now.items():
            if states.get(name) != state:
                say(f"{name}: {state}")
        states = {**states, **now}
        if run.state in ENDED:
            return run
        pause(poll_s)


def check_same(run: Run, asked: Request) -> None:
    """Pass a run of Kubeflow that was given what is asked for.

    Raises:
        ValueError: naming every argument that is another.
    """
    sent = dict(run.runtime_config.parameters or {}) if run.runtime_config else {}
    differing = [key for key, value in asked.arguments.items() if sent.get(key) != value]
    if differing:
        raise ValueError(
            f"Kubeflow has a run {asked.run_id} ({run.run_id}) with another {', '.join(differing)}; choose another name"
        )


def check_record(record: runs.RunRecord, asked: Request) -> None:
    """Pass the record of a run that was begun with what is asked for.

    Raises:
        ValueError: it was begun with another configuration, or for another date, kind or parent.
    """
    runs.check_same_run(asked.run_uri, record.config, asked.config)
    claim = _claim(asked)
    for key, words in (("date", "for D ="), ("kind", "as"), ("parent", "as a rerun of")):
        begun: Any = record.extra.get(key, claim.get(key))
        if begun != claim.get(key):
            what = begun["run"] if key == "parent" else begun
            raise ValueError(f"{asked.run_uri} was begun {words} {what}; choose another name")


def _claim(asked: Request) -> dict[str, Any]:
    """What a run's record says beside the configuration, by which the run is known again."""
    parent = {"parent": asked.parent.model_dump(mode="json")} if asked.parent else {}
    return {"date": str(asked.date), "backend": "kubernetes", "kind": asked.kind, **parent}


def ended_badly(run: Run) -> str | None:
    """Why a run that has ended failed, in Kubeflow's words; None where it succeeded."""
    if run.state == "SUCCEEDED":
        return None
    words = [run.error.message] if run.error and run.error.message else []
    return f"run {run.display_name} ended as {run.state}" + "".join(f": {text}" for text in words)
