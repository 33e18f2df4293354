"""A stand-in for training operator 1.9, for clusters that have the custom resource and no operator.

It does with the PyTorchJobs of one namespace what the operator does, faults included: it looks at a job when something
has happened to the job or its pods, and so at `activeDeadlineSeconds` as well; the Master's success is the job's; a
replica that failed under the policy Never fails the job, while the others go on until `cleanPodPolicy` is applied.
As it is no webhook, a job that the operator's webhook would refuse is made Failed, with the words of the rule.

It makes no HorizontalPodAutoscaler and no PodGroup.

Source: https://github.com/kubeflow/trainer/blob/release-1.9/pkg/controller.v1/common/job.go, pod.go, service.go;
pkg/controller.v1/pytorch/pytorchjob_controller.go.
"""

import copy
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import operator_webhook
from api_server import JOBS, PODS, SERVICES, Api
from job_pods import Replicas, labels, pod_of, service_of, with_defaults
from job_status import (
    count_pods,
    exit_code,
    is_finished,
    is_true,
    now,
    past_backoff_limit,
    seconds_since,
    set_condition,
)
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

POLL_S = 0.3
Object = dict[str, Any]
_log = logging.getLogger(__name__)


def runs_in(api: Api) -> str | None:
    """The deployment of a real training operator that is at work in the cluster, or None."""
    for deployment in api.list(None, "deployments"):
        images = [container["image"] for container in deployment["spec"]["template"]["spec"]["containers"]]
        if any("training-operator" in image for image in images) and deployment["status"].get("availableReplicas"):
            return f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    return None


class TrainingOperator:
    """Plays the operator for one namespace."""

    def __init__(self, api: Api, namespace: str):
        self._api = api
        self._namespace = namespace
        self._seen: dict[str, Any] = {}

    @contextmanager
    def at_work(self) -> Iterator["TrainingOperator"]:
        """The operator works while the block runs."""
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(POLL_S):
                try:
                    self.look()
                except (ApiException, HTTPError) as error:
                    _log.warning("tried again soon: %s", error)

        thread = threading.Thread(target=work, name="training-operator", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()

    def look(self) -> None:
        """Act on every job to which something has happened since the last look."""
        jobs, pods = self._api.list(self._namespace, JOBS), self._api.list(self._namespace, PODS)
        for job in jobs:
            uid = job["metadata"]["uid"]
            own = [
                pod for pod in pods if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))
            ]
            version = [each["metadata"]["resourceVersion"] for each in (job, *own)]
            if "deletionTimestamp" in job["metadata"] or (self._seen.get(uid) == version and not _is_expired(job)):
                continue
            try:
                self._reconcile(job, own)
            except ApiException as error:
                if error.status not in (404, 409):  # It has changed or is gone; the next look is at what there is then.
                    raise
            else:
                self._seen[uid] = version

    def _reconcile(self, job: Object, pods: list[Object]) -> None:
        policy = {"cleanPodPolicy": "None"} | job["spec"].get("runPolicy", {})
        if policy.get("managedBy", "kubeflow.org/training-operator") != "kubeflow.org/training-operator":
            return
        status = copy.deepcopy(job.get("status") or {})
        if not status.get("conditions"):
            set_condition(status, "Created", f"PyTorchJob {job['metadata']['name']} is created.")
        if faults := operator_webhook.faults(job):
            set_condition(status, "Failed", f"refused by the webhook: {'; '.join(faults)}", reason="FailedValidation")
        else:
            self._advance(job, policy, status, pods)
        if status != job.get("status"):
            self._api.set_status(self._namespace, JOBS, {**job, "status": status})

    def _advance(self, job: Object, policy: Object, status: Object, pods: list[Object]) -> None:
        name = job["metadata"]["name"]
        counts = status.setdefault("replicaStatuses", {})
        if is_finished(status):
            self._clean(policy, pods)
            if is_true(status, "Succeeded"):
                for count in counts.values():
                    if active := count.pop("active", 0):
                        count["succeeded"] = count.get("succeeded", 0) + active
            if _is_expired(job):
                self._api.delete(self._namespace, JOBS, name)
            return
        if policy.get("suspend"):
            self._delete(pods)
            for count in counts.values():
                count.pop("active", None)
            message = f"PyTorchJob {name} is suspended."
            if is_true(status, "Running"):
                set_condition(status, "Running", message, value="False", reason="Suspended")
            set_condition(status, "Suspended", message)
            return
        if is_true(status, "Suspended"):
            set_condition(status, "Suspended", f"PyTorchJob {name} is resumed.", value="False", reason="Resumed")
            status["startTime"] = now()
        replicas = with_defaults(job)
        if limit := _limit_passed(policy, status, replicas, pods):
            status.setdefault("completionTime", now())
            set_condition(status, "Failed", f"Job {name} has failed because it {limit}")
            self._clean(policy, pods)
            return
        for kind in replicas:
            self._reconcile_replicas(job, status, replicas, kind, pods)
        status.setdefault("startTime", now())
        self._conclude(job, status, replicas)

    def _reconcile_replicas(
        self, job: Object, status: Object, replicas: Replicas, kind: str, pods: list[Object]
    ) -> None:
        name, policy = job["metadata"]["name"], replicas[kind]["restartPolicy"]
        own = [pod for pod in pods if labels(job, kind).items() <= pod["metadata"]["labels"].items()]
        by_index = {int(pod["metadata"]["labels"]["training.kubeflow.org/replica-index"]): pod for pod in own}
        for index in range(replicas[kind]["replicas"]):
            if (pod := by_index.get(index)) is None:
                self._create_pod(job, pod_of(job, replicas, kind, index))
            elif pod["status"].get("phase") == "Failed":
                retryable = policy in ("OnFailure", "Always") or (policy == "ExitCode" and exit_code(pod) >= 128)
                if retryable:
                    self._api.delete(self._namespace, PODS, pod["metadata"]["name"])
                    set_condition(status, "Restarting", f"job {name} is restarting because {kind} replica(s) failed.")
                elif policy == "ExitCode":
                    set_condition(status, "Failed", f'job "{name}" is failing because "{kind}" replica(s) failed.')
            service = service_of(job, replicas, kind, index)
            if self._api.get(self._namespace, SERVICES, service["metadata"]["name"]) is None:
                self._api.create(self._namespace, SERVICES, service)
        status["replicaStatuses"][kind] = count_pods(own)
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels(job, kind).items()))
        status["replicaStatuses"][kind]["selector"] = selector

    def _conclude(self, job: Object, status: Object, replicas: Replicas) -> None:
        name, elastic = job["metadata"]["name"], job["spec"].get("elasticPolicy")
        deciding = "Master" if "Master" in replicas else "Worker"
        for kind, replica in replicas.items():
            counts = status["replicaStatuses"][kind]
            active, succeeded, failed = (counts.get(key, 0) for key in ("active", "succeeded", "failed"))
            if kind == deciding:
                if active:
                    set_condition(status, "Running", f"PyTorchJob {name} is running.")
                if succeeded == replica["replicas"] or (elastic is not None and deciding == "Worker" and succeeded):
                    status.setdefault("completionTime", now())
                    set_condition(status, "Succeeded", f"PyTorchJob {name} is successfully completed.")
                    return
            if failed and replica["replicas"] > succeeded + active:
                if replica["restartPolicy"] != "Never":
                    message = f"PyTorchJob {name} is restarting because {failed} {kind} replica(s) failed."
                    set_condition(status, "Restarting", message)
                else:
                    status.setdefault("completionTime", now())
                    message = f"PyTorchJob {name} is failed because {failed} {kind} replica(s) failed."
                    set_condition(status, "Failed", message)

    def _create_pod(self, job: Object, pod: Object) -> None:
        try:
            self._api.create(self._namespace, PODS, pod)
        except ApiException as error:
            if error.status == 409:
                raise
            self._warn(job, "FailedCreatePod", f"Error creating: {error.body}")
            raise

    def _clean(self, policy: Object, pods: list[Object]) -> None:
        if policy["cleanPodPolicy"] != "None":
            every = policy["cleanPodPolicy"] == "All"
            self._delete([pod for pod in pods if every or pod["status"].get("phase") in ("Running", "Pending")])

    def _delete(self, pods: list[Object]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                self._api.delete(self._namespace, PODS, pod["metadata"]["name"])
            self._api.delete(self._namespace, SERVICES, pod["metadata"]["name"])

    def _warn(self, job: Object, reason: str, message: str) -> None:
        metadata = job["metadata"]
        event = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {
                **{key: job[key] for key in ("apiVersion", "kind")},
                **{key: metadata[key] for key in ("name", "namespace", "uid")},
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "pytorchjob-controller"},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        self._api.create(self._namespace, "events", event)


def _limit_passed(policy: Object, status: Object, replicas: Replicas, pods: list[Object]) -> str | None:
    restartable = [kind.lower() for kind, replica in replicas.items() if replica["restartPolicy"] != "Never"]
    counted = [pod for pod in pods if pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] in restartable]
    if past_backoff_limit(policy.get("backoffLimit"), counted):
        return "has reached the specified backoff limit"
    deadline_s, start = policy.get("activeDeadlineSeconds"), status.get("startTime")
    if deadline_s is not None and start is not None and seconds_since(start) >= deadline_s:
        return "was active longer than specified deadline"
    return None


def _is_expired(job: Object) -> bool:
    """Whether a finished job has been kept for its time to live."""
    status = job.get("status") or {}
    ttl_s = job["spec"].get("runPolicy", {}).get("ttlSecondsAfterFinished")
    if ttl_s is None or not is_finished(status) or "completionTime" not in status:
        return False
    return seconds_since(status["completionTime"]) >= ttl_s
