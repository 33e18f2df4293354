"""The backend `kubernetes`: has a PyTorchJob run on a cluster, watches it to its end, and says how that was."""

import datetime
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from thaw.components import events, storage
from thaw.components.launcher import processes, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import TrainingJob, document_digest
from thaw.components.launcher.kubernetes import access
from thaw.components.launcher.kubernetes.cancel import Canceller
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.kubernetes.logs import Streams
from thaw.components.launcher.kubernetes.pods import Replica, Roll, replicas
from thaw.components.launcher.kubernetes.report import Remains
from thaw.components.launcher.kubernetes.watchdog import Watchdog
from thaw.components.launcher.pytorchjob import RUN_ID, SPEC_DIGEST, JobState

LAUNCHED = "launched.json"
"""In the attempt's folder, once its job has been created."""

_POD_VARIABLES = (("KFP_POD_NAME", "KFP_POD_UID"), ("POD_NAME", "POD_UID"))
_DELETE_PATIENCE_S = 60.0
_LATE_PATIENCE_S = 3.0
"""The same once this process is told to end."""
_NUM_TOLD = 3
_LIVES_ON = "lives on until its lease runs out (cluster.lease_timeout_s), or the step is started again"


class OtherWorkError(ValueError):
    """The attempt's job does other work than this launcher was to have done, and has not ended."""

    leaves_open = True


def run(
    job: TrainingJob,
    manifest: dict[str, Any],
    on_line: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Run a PyTorchJob, and return when it has succeeded.

    The attempt's job is created, or taken up where an earlier launcher created it. If this one is told to end by
    SIGTERM or SIGINT, the job is deleted; if it is killed, the job goes on for the next one. To be called from the main
    thread.

    Args:
        job: The job; its specification is in the attempt's folder.
        manifest: Its PyTorchJob.
        on_line: Called with each line of the Master's log as it comes, from a thread.
        clock: Seconds that only grow.
        pause: Waits so many seconds.

    Raises:
        ValueError: the job of this name, or of this attempt, does other work; it is left alone.
        JobFailed: it failed, took too long to start or to end, is gone, or this process was told to end.
        ApiError: the API server refused the job, or can't be reached.
    """
    processes.end_with_driver()
    api = Api(job.config.cluster.namespace, clock=clock, pause=pause)
    launcher = _Launcher(job, manifest, on_line, api, clock, pause)
    with Canceller(api.namespace, job.name) as canceller:
        try:
            found = launcher.take_up_or_create()
            canceller.watch(found["metadata"]["uid"])
            launcher.follow(found)
        except processes.Interrupted as signal:
            raise launcher.cancelled(signal, canceller) from None
        except JobFailed:
            raise
        except Exception as error:
            if launcher.uid is None:
                raise
            # Nobody is left to look at the job.
            raise launcher.ended(str(error) or type(error).__name__, hint=getattr(error, "hint", None)) from error


class _Launcher:
    """One job, from its creation or adoption to its end.

    Attributes:
        uid: Of the job, once it is known and known to be ours.
    """

    def __init__(
        self,
        job: TrainingJob,
        manifest: dict[str, Any],
        on_line: Callable[[str], None],
        api: Api,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ):
        self.uid: str | None = None
        self._job = job
        self._name = job.name
        self._cluster = job.config.cluster
        self._manifest = manifest
        self._log_uri = job.logs_uri
        self._on_line = on_line
        self._api = api
        self._clock = clock
        self._pause = pause
        self._had_ended = False
        self._told: dict[str, Any] = {}

    def take_up_or_create(self) -> dict[str, Any]:
        """The attempt's one job, ours, with this pod as its owner."""
        patience_s = self._cluster.start_timeout_s
        self._check_attempt(patience_s)
        launched_uri = storage.join(self._job.spec.output_uri, LAUNCHED)
        found = self._api.get_job(self._name, patience_s)
        taken_up = found is not None
        owners = _owner_references(self._api.namespace)
        if found is None:
            if storage.exists(launched_uri):
                raise JobFailed(self._name, f"PyTorchJob {self._name} no longer exists", had_ended=True)
            metadata = self._manifest["metadata"] | ({"ownerReferences": owners} if owners else {})
            found = self._api.create_job(self._manifest | {"metadata": metadata}, patience_s)
        self._check_same_work(found)
        self.uid = found["metadata"]["uid"]
        self._had_ended = taken_up and pytorchjob.state(found).failed
        with suppress(FileExistsError):
            storage.create_json(launched_uri, {"job": self._name, "uid": self.uid})
        if found["metadata"].get("ownerReferences", []) != owners:
            # The owner that it was created with is another try of the step; the job would go with that pod.
            self._api.patch_job(self._name, {"metadata": {"ownerReferences": owners}}, patience_s)
        doing = "taken up" if taken_up else "created"
        events.emit("job", job=self._name, namespace=self._api.namespace, status=doing)
        return found

    def follow(self, found: dict[str, Any]) -> None:
        """Look at the job again and again; return when it has succeeded."""
        state = pytorchjob.state(found)
        watchdog = Watchdog(self._cluster, pytorchjob.replica_names(self._manifest), _age_s(state))
        logs = Streams(self._api, self._on_line)
        roll = Roll()
        looked_s = began_s = self._clock()
        doubted = False
        while not state.succeeded:
            pods = replicas(self._name, self._api.list_pods(self._name, watchdog.left_s))
            self._tell(state, pods)
            logs.follow(pods)
            roll.call(pods)
            now_s = self._clock()
            verdict = None if state.failed else watchdog.judge(now_s - looked_s, state, pods)
            doubted = not doubted and now_s - began_s > self._cluster.poll_s
            if doubted:
                # An outage may lie between job and pods, and much have happened in it. The next look decides.
                verdict = None
            if state.failed or verdict:
                remains = Remains(self._api, self._name, pods, self._log_uri, logs.finish())
                remains.show(self._on_line)
                if verdict:
                    raise remains.ended(verdict, self._deleted)
                kept = f"stays for {self._cluster.ttl_s} s (cluster.ttl_s)"
                remains.add_deleted(roll.deleted(pods, state.failed_kinds))
                raise remains.failed(state, kept, self._had_ended)
            looked_s = now_s
            self._pause(self._cluster.poll_s)
            began_s = self._clock()
            again = self._api.get_job(self._name, watchdog.left_s)
            if again is None or again["metadata"]["uid"] != self.uid:
                raise JobFailed(self._name, f"PyTorchJob {self._name} no longer exists: somebody else deleted it")
            state = pytorchjob.state(again)
        with suppress(ApiError):
            # A short job may have run between two looks.
            logs.follow(replicas(self._name, self._api.list_pods(self._name)))
        logs.finish()

    def cancelled(self, signal: processes.Interrupted, canceller: Canceller) -> JobFailed:
        """The error of a job whose launcher was told to end. It is deleted first."""
        fate, leaves_open = self._deleted(_LATE_PATIENCE_S) if self.uid else self._undone()
        if not leaves_open:
            canceller.done()
        return self._failed(f"its launcher was told to end by {signal}", fate, leaves_open=leaves_open)

    def ended(self, cause: str, hint: str | None) -> JobFailed:
        """The error of a job that can't be looked at any more; it is deleted, if that can be done."""
        fate, leaves_open = self._deleted()
        return self._failed(cause, fate, leaves_open=leaves_open, hint=hint)

    def _failed(self, cause: str, fate: str, *, leaves_open: bool = False, hint: str | None = None) -> JobFailed:
        return JobFailed(
            self._name, cause, fate=fate, leaves_open=leaves_open, hint=hint or "start the step again, or a new run"
        )

    def _deleted(self, patience_s: float = _DELETE_PATIENCE_S) -> tuple[str, bool]:
        """Delete the job. What became of it, and whether it may live on."""
        assert self.uid is not None
        try:
            self._api.delete_job(self._name, self.uid, patience_s)
        except ApiError as error:
            events.emit("warning", message=str(error))
            return _LIVES_ON, True
        return "was deleted", False

    def _undone(self) -> tuple[str, bool]:
        """As `_deleted`, where the create may have been under way."""
        try:
            found = self._api.get_job(self._name, _LATE_PATIENCE_S)
            if found is None:
                return "was not created", False
            self._check_same_work(found)
        except ApiError:
            return _LIVES_ON, True
        except ValueError:
            return "is another's", False
        self.uid = found["metadata"]["uid"]
        return self._deleted(_LATE_PATIENCE_S)

    def _check_attempt(self, patience_s: float) -> None:
        """Refuses an attempt that was begun for other work, as by another version of the code, and is not over."""
        written = storage.read_json(self._job.spec_uri)
        digest = document_digest(written)
        if digest == self._job.spec_digest:
            return
        found = self._api.get_job(written["job"], patience_s)
        what = f"{self._job.spec.output_uri} was begun for work {digest}, and this is {self._job.spec_digest}"
        if found is None or (state := pytorchjob.state(found)).failed or state.succeeded:
            raise JobFailed(written["job"], what, had_ended=True)
        raise OtherWorkError(f"{what}; its PyTorchJob {written['job']} goes on: delete it, or start a new run")

    def _check_same_work(self, found: dict[str, Any]) -> None:
        """Refuses a job that only has the name."""
        annotations = found["metadata"].get("annotations") or {}
        ours = self._manifest["metadata"]["annotations"]
        if any(annotations.get(key) != ours[key] for key in (RUN_ID, SPEC_DIGEST)):
            raise ValueError(
                f"PyTorchJob {self._name} in namespace {self._api.namespace} is there already and of run "
                f"{annotations.get(RUN_ID)!r}, work {annotations.get(SPEC_DIGEST)}; this is run {ours[RUN_ID]!r}, work "
                f"{ours[SPEC_DIGEST]}. It is left alone; start the step again, which takes another name"
            )

    def _tell(self, state: JobState, pods: Sequence[Replica]) -> None:
        """Puts into the step's log what has changed."""
        waiting = {pod.name: pod.waits_for for pod in pods if not pod.started and pod.waits_for}
        told = {
            "status": "queued" if state.queued else state.last_condition,
            "started": f"{sum(pod.started for pod in pods)}/{len(pytorchjob.replica_names(self._manifest))}",
            "waiting": dict(list(waiting.items())[:_NUM_TOLD]),
        }
        if told != self._told:
            self._told = told
            events.emit("job", job=self._name, **told)


def _owner_references(namespace: str) -> list[dict[str, str]]:
    """This step's pod, so that the job goes when the pod is removed; none outside of a pod.

    An owner in another namespace does not count: the garbage collector would take it for gone, and the job with it.
    """
    with suppress(FileNotFoundError):
        if access.POD_NAMESPACE_PATH.read_text().strip() != namespace:
            return []
    for name, uid in _POD_VARIABLES:
        if name in os.environ and uid in os.environ:
            return [{"apiVersion": "v1", "kind": "Pod", "name": os.environ[name], "uid": os.environ[uid]}]
    return []


def _age_s(state: JobState) -> float:
    """How long a job has been out of the queue, as far as it is known; by two clocks, which need not agree exactly."""
    if state.active_since is None:
        return 0.0
    return max(0.0, (datetime.datetime.now(datetime.UTC) - state.active_since).total_seconds())
