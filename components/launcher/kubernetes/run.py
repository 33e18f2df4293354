"""The backend `kubernetes`: has a PyTorchJob run on a cluster, watches it to its end, and says how that was."""

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from thaw.components import events, storage
from thaw.components.jobs import RESULT
from thaw.components.launcher import processes, pytorchjob
from thaw.components.launcher.failure import JobFailed
from thaw.components.launcher.job import LAUNCHED, TrainingJob, document_digest
from thaw.components.launcher.kubernetes.adoption import check_same_job, owner_references, take_over
from thaw.components.launcher.kubernetes.cancel import Canceller
from thaw.components.launcher.kubernetes.client import Api, ApiError
from thaw.components.launcher.kubernetes.logs import Streams
from thaw.components.launcher.kubernetes.pods import Replica, Roll, replicas
from thaw.components.launcher.kubernetes.report import Remains, save_log
from thaw.components.launcher.kubernetes.watchdog import Watchdog
from thaw.components.launcher.pytorchjob import JobState
from thaw.components.runs.attempt import FAILURE

_DELETE_PATIENCE_S = 60.0
_LATE_PATIENCE_S = 3.0
"""The same once this process is told to end."""
_NUM_TOLD = 3
_LIVES_ON = "lives on until its lease runs out (cluster.lease_timeout_s), or the step is started again"
_ANOTHERS = "is left to another start of the step, which has taken it up"


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
    try:
        with Canceller(api.namespace, job.name) as canceller:
            try:
                _run(launcher, canceller)
            except processes.Interrupted as signal:
                raise launcher.cancelled(signal, canceller) from None
    except processes.Interrupted as signal:
        signal.leaves_open = True  # it came when all was done
        raise


def _run(launcher: "_Launcher", canceller: Canceller) -> None:
    try:
        found = launcher.take_up_or_create()
        if found is not None:
            canceller.watch(found["metadata"]["uid"], launcher.owner)
            launcher.follow(found)
    except JobFailed:
        raise
    except Exception as error:
        if launcher.uid is None:
            raise
        # Nobody is left to look at the job.
        raise launcher.ended(error) from error


class _Launcher:
    """One job, from its creation or adoption to its end.

    Attributes:
        uid: Of the job, once it is known and known to be ours.
        owner: The uid of the job's owner; as long as it has that one, this launcher may delete it. None: it has none.
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
        self._owners = owner_references(api.namespace)
        self.owner: str | None = self._owners[0]["uid"] if self._owners else None
        self._asked = False
        """Whether a create was sent and not answered."""
        self._taken_up = False
        self._had_ended = False
        self._cause: str | None = None
        """What ends the job, once it is known."""
        self._told: dict[str, Any] = {}

    def take_up_or_create(self) -> dict[str, Any] | None:
        """The attempt's one job, ours, with this pod as its owner; None where it has done its work and is gone."""
        patience_s = self._cluster.start_timeout_s
        self._check_attempt(patience_s)
        launched_uri = storage.join(self._job.spec.output_uri, LAUNCHED)
        launched: dict[str, Any] | None = None
        with suppress(FileNotFoundError):
            launched = storage.read_json(launched_uri)
        found = self._api.get_job(self._name, patience_s)
        self._taken_up = found is not None
        if found is None:
            if launched or self._has_done_its_work():
                self._gone(launched["uid"] if launched else None, "", had_ended=True)
                return None
            metadata = self._manifest["metadata"] | ({"ownerReferences": self._owners} if self._owners else {})
            self._asked = True
            found = self._api.create_job(self._manifest | {"metadata": metadata}, patience_s)
            self._asked = False
        check_same_job(self._manifest, found, launched)
        uid = self.uid = found["metadata"]["uid"]
        others = False
        try:
            storage.create_json(launched_uri, {"job": self._name, "uid": uid})
        except FileExistsError:
            # Since this launcher looked, a newer start of the step has launched the job, and keeps it.
            others = launched is None
        if not self._taken_up:
            self._check_in_time(uid, launched_uri)
        if "deletionTimestamp" in found["metadata"]:
            self._await_deletion(had_ended=True)
            return None
        self._taken_up = self._taken_up or others
        self._had_ended = self._taken_up and pytorchjob.state(found).failed
        owned: dict[str, Any] | None = found
        if not others:
            owned, self.owner = take_over(self._api, found, self._owners, patience_s)
        if owned is None:
            self._gone(uid, "", had_ended=True)
            return None
        doing = "taken up" if self._taken_up else "created"
        events.emit("job", job=self._name, namespace=self._api.namespace, status=doing)
        return owned

    def follow(self, found: dict[str, Any]) -> None:
        """Look at the job again and again; return when it has succeeded."""
        state = pytorchjob.state(found)
        # One that was created here has no age, whatever this machine's clock says.
        age_s = _age_s(state) if self._taken_up else 0.0
        watchdog = Watchdog(self._cluster, pytorchjob.replica_names(self._manifest), age_s)
        logs = Streams(self._api, self._on_line)
        roll = Roll()
        looked_s = began_s = self._clock()
        doubted = False
        while not state.succeeded:
            pods = replicas(self._name, self._api.list_pods(self._name, watchdog.left_s))
            self._tell(state, pods)
            logs.follow(pods)
            if state.suspended:
                # Whoever suspends a job deletes its pods; it gets others.
                roll = Roll()
            else:
                roll.call(pods)
            now_s = self._clock()
            verdict = None if state.failed else watchdog.judge(now_s - looked_s, state, pods)
            doubted = not doubted and now_s - began_s > self._cluster.poll_s
            if doubted:
                # An outage may lie between job and pods, and much have happened in it. The next look decides.
                verdict = None
            if state.failed or verdict:
                self._cause = verdict.cause if verdict else state.last_condition
                remains = Remains(self._api, self._name, pods, self._log_uri, logs.finish(), self._clock)
                remains.show(self._on_line)
                if verdict and self._has_done_its_work():
                    return
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
                self._save(logs)
                self._gone(None if again else self.uid, ": somebody else deleted it")
                return
            state = pytorchjob.state(again)
            if "deletionTimestamp" in again["metadata"] and not (state.succeeded or state.failed):
                self._save(logs)
                self._await_deletion()
                return
        with suppress(ApiError):
            # A short job may have run between two looks.
            logs.follow(replicas(self._name, self._api.list_pods(self._name)))
        logs.finish()

    def cancelled(self, signal: processes.Interrupted, canceller: Canceller) -> JobFailed:
        """The error of a job whose launcher was told to end. It is deleted first."""
        fate, leaves_open = self._deleted(_LATE_PATIENCE_S) if self.uid else self._undone()
        if not leaves_open:
            canceller.done()
        told = f"its launcher was told to end by {signal}"
        with suppress(storage.StorageError):
            if self.uid and self._has_done_its_work():
                told += ", when it had done its work"
                leaves_open = True
        return self._failed(f"{self._cause}; then {told}" if self._cause else told, fate, leaves_open=leaves_open)

    def ended(self, error: Exception) -> JobFailed:
        """The error of a job that can't be looked at any more; it is deleted, if that can be done and it is our own."""
        expected = isinstance(error, (ApiError, storage.StorageError))
        self._cause = str(error) if expected else f"{type(error).__name__}: {error}"
        with suppress(storage.StorageError):
            if self._has_done_its_work():
                return self._failed(f"{self._cause}; it had done its work", "", leaves_open=True)
        # A job that was taken up may be hours old, and be well.
        fate, leaves_open = (_LIVES_ON, True) if self._taken_up else self._deleted()
        return self._failed(self._cause, fate, leaves_open=leaves_open, hint=getattr(error, "hint", None))

    def _gone(self, uid: str | None, why: str, *, had_ended: bool = False) -> None:
        """Returns where a job that is gone had done its work.

        Args:
            uid: Of the job, to be deleted if it is there after all; None where another has its name.
            why: What is known.
            had_ended: As of JobFailed.
        """
        self._cause = f"PyTorchJob {self._name} no longer exists{why}"
        try:
            if self._has_done_its_work():
                return
        except storage.StorageError as error:
            cause = f"{self._cause}, and whether it had done its work is not known: {error}"
            raise self._failed(cause, "", leaves_open=True) from error
        fate, leaves_open = self._deleted(uid=uid) if uid else ("", False)
        raise JobFailed(
            self._name,
            self._cause,
            fate=fate if leaves_open else "",
            had_ended=had_ended and not leaves_open,
            leaves_open=leaves_open,
        )

    def _await_deletion(self, *, had_ended: bool = False) -> None:
        """As `_gone`, of a job that somebody has deleted and that is not gone yet."""
        limit_s = self._cluster.start_timeout_s
        until = self._clock() + limit_s
        self._cause = f"PyTorchJob {self._name} is being deleted by somebody else"
        while (found := self._api.get_job(self._name, limit_s)) and found["metadata"]["uid"] == self.uid:
            if self._clock() >= until:
                raise self._failed(
                    f"{self._cause}, and is not gone after {limit_s:g} s (cluster.start_timeout_s)",
                    "is not gone",
                    leaves_open=True,
                    hint="see which of its metadata.finalizers holds it, and start the step again",
                )
            self._pause(self._cluster.poll_s)
        self._gone(None if found else self.uid, ": somebody else deleted it", had_ended=had_ended)

    def _has_done_its_work(self) -> bool:
        return storage.exists(storage.join(self._job.spec.output_uri, RESULT))

    def _save(self, logs: Streams) -> None:
        for name, lines in logs.finish().items():
            save_log(self._log_uri, name, lines)

    def _failed(self, cause: str, fate: str, *, leaves_open: bool = False, hint: str | None = None) -> JobFailed:
        return JobFailed(
            self._name, cause, fate=fate, leaves_open=leaves_open, hint=hint or "start the step again, or a new run"
        )

    def _deleted(self, patience_s: float = _DELETE_PATIENCE_S, uid: str | None = None) -> tuple[str, bool]:
        """Delete the job. What became of it, and whether it may live on."""
        uid = uid or self.uid
        assert uid is not None
        try:
            deleted = self._api.delete_job(self._name, uid, patience_s, self.owner)
        except ApiError as error:
            events.emit("warning", message=str(error))
            return _LIVES_ON, True
        return ("was deleted", False) if deleted else (_ANOTHERS, True)

    def _undone(self) -> tuple[str, bool]:
        """As `_deleted`, where the create may have been under way."""
        try:
            found = self._api.get_job(self._name, _LATE_PATIENCE_S)
            if found is None:
                return ("may yet be created", True) if self._asked else ("was not created", False)
            check_same_job(self._manifest, found, None)
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

    def _check_in_time(self, uid: str, launched_uri: str) -> None:
        """Withdraws a job that was created too late: other starts of the step have seen the attempt to its end."""
        launched_uid = storage.read_json(launched_uri)["uid"]
        if uid != launched_uid:
            self._cause = f"it was created after {launched_uid}, the attempt's own"
        elif storage.exists(storage.join(self._job.spec.output_uri, FAILURE)):
            self._cause = "it was created when its attempt had failed"
        else:
            return
        fate, _ = self._deleted()
        raise self._failed(self._cause, fate, leaves_open=True)

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


def _age_s(state: JobState) -> float:
    """How long a job has been out of the queue, as far as it is known; by two clocks, which need not agree exactly."""
    if state.active_since is None:
        return 0.0
    return max(0.0, (datetime.datetime.now(datetime.UTC) - state.active_since).total_seconds())
