"""When a job is waited for no longer. Pure rules: what the API server shows and the time that passed go in."""

from collections.abc import Sequence
from dataclasses import dataclass

from thaw.components.config.training import Cluster
from thaw.components.launcher.kubernetes.pods import Replica
from thaw.components.launcher.pytorchjob import JobState

MAX_RESTARTS = 3
"""Of containers, over all replicas. The job asks for none: a rank that was started again can't rejoin the others."""

_NUM_TOLD = 3


@dataclass(frozen=True)
class Verdict:
    """Why a job is to be ended."""

    cause: str
    replica: str | None = None
    never_started: bool = False
    """Whether what kept it from starting is the question, not what it did."""
    hint: str | None = None


class Watchdog:
    """The limits of one job's waiting. Time in a queue counts for the queue's limit alone."""

    def __init__(self, cluster: Cluster, replica_names: Sequence[str], active_s: float):
        """Begin to count.

        Args:
            cluster: The limits.
            replica_names: Of the whole job.
            active_s: How long the job has been out of the queue by now.
        """
        self._cluster = cluster
        self._replica_names = replica_names
        self._active_s = active_s
        self._starting_s = self._queued_s = 0.0
        self._over_s: float | None = None
        self._leaving_s: float | None = None
        self._has_started = False

    @property
    def left_s(self) -> float:
        """After how long the job is ended at the latest, if nothing is heard of it any more."""
        return max(0.0, self._cluster.deadline_s - self._active_s)

    def judge(self, passed_s: float, job: JobState, replicas: Sequence[Replica]) -> Verdict | None:
        """Whether to go on waiting for a job that has not ended.

        Args:
            passed_s: Since the last call.
            job: Its state.
            replicas: Those that have a pod.
        """
        if job.queued:
            self._queued_s += passed_s
            self._starting_s, self._over_s, self._leaving_s = 0.0, None, None
            self._has_started = False
            return self._judge_queued()
        self._queued_s = 0.0
        self._active_s += passed_s
        self._starting_s += passed_s
        if job.suspended and self._has_started:
            self._has_started, self._starting_s = False, 0.0
        missing = self._not_started(job, replicas)
        self._has_started = self._has_started or not missing
        stuck = next((replica for replica in replicas if not replica.heals), None)
        if stuck is not None:
            return Verdict(f"{stuck.name} can't start: {stuck.waits_for}", stuck.name, never_started=True)
        num_restarts = sum(replica.num_restarts for replica in replicas)
        if num_restarts > MAX_RESTARTS:
            worst = max(replicas, key=lambda replica: replica.num_restarts)
            return Verdict(
                f"its containers were started again {num_restarts} times, {worst.name}'s {worst.num_restarts} times; "
                f"{job.last_condition}",
                worst.name,
            )
        if not self._has_started and self._starting_s >= self._cluster.start_timeout_s:
            return self._never_started(job, missing, replicas)
        # Either ends the job, which is for the operator to say.
        over = next((each for each in replicas if each.failed or (each.name, each.exit_code) == ("master-0", 0)), None)
        self._over_s = _lasting_s(self._over_s, passed_s, over)
        if over and self._over_s is not None and self._over_s >= self._cluster.start_timeout_s:
            reason = f" ({over.reason})" if over.reason else ""
            return Verdict(
                f"{over.name} ended with exit code {over.exit_code}{reason}, and in "
                f"{self._cluster.start_timeout_s:g} s (cluster.start_timeout_s) the job did not; {job.last_condition}",
                over.name,
                hint="see that the training operator runs",
            )
        # A node that is lost can't say that a pod of it has ended, and until it does the pod stays.
        leaving = next((each for each in replicas if each.deleted), None)
        self._leaving_s = _lasting_s(self._leaving_s, passed_s, leaving)
        if leaving and self._leaving_s is not None and self._leaving_s >= self._cluster.start_timeout_s:
            return Verdict(
                f"{leaving.name}'s pod is being deleted, and is not gone after {self._cluster.start_timeout_s:g} s "
                f"(cluster.start_timeout_s); {job.last_condition}",
                leaving.name,
                hint=f"see whether its node is lost: kubectl get pod {leaving.pod} --output wide; kubectl get nodes",
            )
        if self._active_s >= self._cluster.deadline_s:
            return Verdict(
                f"it was not done after {self._cluster.deadline_s} s (cluster.deadline_s); {job.last_condition}",
                hint="see in the log how far it came, and raise cluster.deadline_s if it needs longer",
            )
        return None

    def _not_started(self, job: JobState, replicas: Sequence[Replica]) -> list[str]:
        """Replicas that don't run yet. Where there is no pod at all, the job's word that they run is taken."""
        if job.started and not replicas:
            return []
        started = {replica.name for replica in replicas if replica.started}
        return [name for name in self._replica_names if name not in started]

    def _judge_queued(self) -> Verdict | None:
        limit_s = self._cluster.queue_timeout_s
        if self._queued_s < limit_s:
            return None
        return Verdict(
            f"queue {self._cluster.queue} did not let it in for {limit_s:g} s (cluster.queue_timeout_s)",
            never_started=True,
            hint="see what the queue waits for: kubectl get workloads; or raise cluster.queue_timeout_s",
        )

    def _never_started(self, job: JobState, missing: Sequence[str], replicas: Sequence[Replica]) -> Verdict:
        waits = {replica.name: replica.waits_for for replica in replicas if not replica.started}
        waiting = [name for name in missing if name in waits]
        podless = [name for name in missing if name not in waits]
        told = [f"{name}: {waits[name] or 'pending'}" for name in waiting[:_NUM_TOLD]]
        if waiting[_NUM_TOLD:]:
            told.append(f"{len(waiting) - _NUM_TOLD} more wait")
        if podless:
            told.append(f"no pod of {podless[0]}" + (f" and {len(podless) - 1} more" if podless[1:] else ""))
        suspended = "; it is suspended, and has no queue that would let it in" if job.suspended else ""
        return Verdict(
            f"it was not started after {self._cluster.start_timeout_s:g} s (cluster.start_timeout_s): "
            f"{job.last_condition}{suspended}; {'; '.join(told)}",
            replica=missing[0] if len(missing) < len(self._replica_names) else None,
            never_started=True,
            hint=None if replicas or job.started else "see that a training operator runs and watches the namespace",
        )


def _lasting_s(before_s: float | None, passed_s: float, seen: Replica | None) -> float | None:
    """For how long something is seen, None if it is not. What passed before it was first seen does not count."""
    if seen is None:
        return None
    return 0.0 if before_s is None else before_s + passed_s
