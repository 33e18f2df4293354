"""Whether a cluster can run the pipeline's training jobs, found out without changing anything there."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import urllib3.exceptions
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.launcher.kubernetes.access import connect
from thaw.components.launcher.kubernetes.rbac import Right, rights
from thaw.components.launcher.pytorchjob import GROUP, PLURAL, VERSION
from thaw.components.storage.errors import reporting
from thaw.components.storage.filesystem import is_local

_TIMEOUT_S = (5, 15)
"""To connect, and between two packets of an answer."""
_OPERATOR = "training-operator"
_KUEUE = "kueue.x-k8s.io"


@dataclass(frozen=True)
class Finding:
    """What one look found."""

    name: str
    """What was looked at."""
    state: Literal["ok", "missing", "unknown"]
    """`unknown`: whoever asks may not see it, or nobody can without changing something."""
    words: str
    """What was found, in one line."""
    fix: str | None = None
    """What to do about it."""


def check_cluster(
    config: RunConfig, root: str, context: str | None = None, account: str | None = None
) -> list[Finding]:
    """Look at all that a run's training jobs need of the cluster and of the store.

    Args:
        config: The run's document; its section `cluster` says what is needed.
        root: Where `runs/` lies.
        context: Of the kubeconfig; None: its current one, or in a pod the cluster of that.
        account: Whose rights count, the steps' service account as `namespace:name`; None: those of whoever asks.
    """
    return [*_cluster(config, context, account), *_store(root), _data(config.data.uri)]


def _cluster(config: RunConfig, context: str | None, account: str | None) -> Iterator[Finding]:
    try:
        api = connect(context)
    except ValueError as error:
        yield Finding("Kubernetes", "missing", str(error), "name the cluster by KUBECONFIG, or its context")
        return
    server = _server(api)
    yield server
    if server.state != "ok":
        return
    cluster = config.cluster
    yield _namespace(api, cluster.namespace)
    yield _custom_resource(api)
    yield _operator(api)
    for right in rights():
        yield _right(api, right, cluster.namespace, account)
    if cluster.service_account is not None:
        yield _service_account(api, cluster.namespace, cluster.service_account)
    if cluster.queue is not None:
        yield _queue(api, cluster.namespace, cluster.queue)


def _server(api: client.ApiClient) -> Finding:
    host = api.configuration.host
    try:
        version = client.VersionApi(api).get_code(_request_timeout=_TIMEOUT_S)
    except ApiException as error:
        if error.status != 401:
            return Finding("Kubernetes", "ok", f"{host} answers; its version is not for everybody ({error.reason})")
        return Finding("Kubernetes", "missing", f"{host} knows no such user", "renew the credentials of the kubeconfig")
    except (urllib3.exceptions.HTTPError, OSError) as error:
        words = f"{host} can't be reached: {getattr(error, 'reason', None) or error}"
        return Finding(
            "Kubernetes", "missing", words, "see that the kubeconfig names the right server, and that it runs"
        )
    return Finding("Kubernetes", "ok", f"{host}, {version.git_version}")


def _namespace(api: client.ApiClient, name: str) -> Finding:
    return _look(
        f"namespace {name}",
        lambda: client.CoreV1Api(api).read_namespace(name, _request_timeout=_TIMEOUT_S),
        found=lambda namespace: Finding(f"namespace {name}", "ok", "is there"),
        fix=f"kubectl create namespace {name}, or set cluster.namespace",
    )


def _custom_resource(api: client.ApiClient) -> Finding:
    name, resource = "custom resource", f"{PLURAL}.{GROUP}"

    def served(listed: Any) -> Finding:
        if PLURAL in {each.name for each in listed.resources}:
            return Finding(name, "ok", f"{resource} {VERSION} is served")
        return Finding(name, "missing", f"{GROUP}/{VERSION} is served without {PLURAL}", fix)

    fix = "install the training operator, release 1.9, with its custom resources"
    # By discovery, which everybody may use; to read the definition itself takes a right on the whole cluster.
    return _look(
        name,
        lambda: client.CustomObjectsApi(api).get_api_resources(GROUP, VERSION, _request_timeout=_TIMEOUT_S),
        found=served,
        fix=fix,
        absent=f"{resource} {VERSION} is not served",
    )


def _operator(api: client.ApiClient) -> Finding:
    name = "training operator"

    def running(deployments: list[Any]) -> Finding:
        operators = [each for each in deployments if _OPERATOR in each.metadata.name or _OPERATOR in _images(each)]
        where = ", ".join(f"{each.metadata.namespace}/{each.metadata.name}" for each in operators)
        if not operators:
            fix = "install the training operator, release 1.9: without it a job stays without status"
            return Finding(
                name, "missing", f"no deployment of any namespace is called {_OPERATOR}, or runs its image", fix
            )
        if not any(each.status.ready_replicas for each in operators):
            return Finding(name, "missing", f"{where} has no ready replica", "see why its pods don't run")
        return Finding(name, "ok", f"{where}: {_images(operators[0])}")

    def all_deployments() -> list[Any]:
        found, following = [], None
        while True:
            page = client.AppsV1Api(api).list_deployment_for_all_namespaces(
                limit=500, _continue=following, _request_timeout=_TIMEOUT_S
            )
            found += page.items
            following = page.metadata._continue
            if not following:
                return found

    return _look(name, all_deployments, found=running, fix="ask who runs the cluster")


def _images(deployment: Any) -> str:
    return ", ".join(container.image or "" for container in deployment.spec.template.spec.containers)


def _right(api: client.ApiClient, right: Right, namespace: str, account: str | None) -> Finding:
    """Whether the steps may do one thing; the server is asked, and keeps no record of it."""
    name = f"may {right.verb} {right.resource}"
    resource, _, subresource = right.resource.partition("/")
    attributes = client.V1ResourceAttributes(
        group=right.group, resource=resource, subresource=subresource or None, verb=right.verb, namespace=namespace
    )
    authorization = client.AuthorizationV1Api(api)
    if account is None:
        spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
        review, who, named = client.V1SelfSubjectAccessReview(spec=spec), "you", ""
        ask = authorization.create_self_subject_access_review
    else:
        account_namespace, _, account_name = account.rpartition(":")
        account_namespace = account_namespace or namespace
        spec = client.V1SubjectAccessReviewSpec(
            resource_attributes=attributes,
            user=f"system:serviceaccount:{account_namespace}:{account_name}",
            groups=["system:serviceaccounts", f"system:serviceaccounts:{account_namespace}", "system:authenticated"],
        )
        review, who = client.V1SubjectAccessReview(spec=spec), f"service account {account_namespace}:{account_name}"
        named = f" --service-account {account_namespace}:{account_name}"
        ask = authorization.create_subject_access_review

    def answered(answer: Any) -> Finding:
        if answer.status.allowed:
            return Finding(name, "ok", f"{who}, in namespace {namespace}")
        words = f"{who} may not {right.verb} {right} in namespace {namespace}"
        return Finding(name, "missing", words, f"thaw rbac -n {namespace}{named} | kubectl apply -f -")

    fix = "ask as somebody who may look into the rights of others"
    return _look(name, lambda: ask(review, _request_timeout=_TIMEOUT_S), found=answered, fix=fix)


def _service_account(api: client.ApiClient, namespace: str, account: str) -> Finding:
    name = f"service account {account}"
    return _look(
        name,
        lambda: client.CoreV1Api(api).read_namespaced_service_account(account, namespace, _request_timeout=_TIMEOUT_S),
        found=lambda _: Finding(name, "ok", f"is in namespace {namespace}"),
        fix=f"create it in namespace {namespace}, or set cluster.service_account",
    )


def _queue(api: client.ApiClient, namespace: str, queue: str) -> Finding:
    name = f"queue {queue}"

    def local_queue() -> Any:
        groups = client.ApisApi(api).get_api_versions(_request_timeout=_TIMEOUT_S).groups
        version = next((group.preferred_version.version for group in groups if group.name == _KUEUE), None)
        if version is None:
            raise ApiException(404, f"the cluster has no Kueue: {_KUEUE} is not served")
        return client.CustomObjectsApi(api).get_namespaced_custom_object(
            _KUEUE, version, namespace, "localqueues", queue, _request_timeout=_TIMEOUT_S
        )

    def found(document: dict[str, Any]) -> Finding:
        conditions = {each["type"]: each for each in document.get("status", {}).get("conditions", ())}
        active = conditions.get("Active", {})
        if active.get("status") == "False":
            return Finding(name, "missing", f"is not active: {active.get('message')}", "see its ClusterQueue")
        return Finding(name, "ok", f"of ClusterQueue {document.get('spec', {}).get('clusterQueue')}")

    fix = f"create the LocalQueue in namespace {namespace}, or set cluster.queue"
    return _look(name, local_queue, found=found, fix=fix)


def _look(
    name: str,
    ask: Callable[[], Any],
    *,
    found: Callable[[Any], Finding],
    fix: str,
    absent: str | None = None,
) -> Finding:
    """The finding that an answer makes; of a refusal, the finding that makes."""
    try:
        answer = ask()
    except ApiException as error:
        if error.status == 404:
            return Finding(name, "missing", absent or f"is not there ({error.reason})", fix)
        return Finding(name, "unknown", f"can't tell: the server says {error.status} {error.reason}", fix)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        return Finding(name, "unknown", f"can't tell: {getattr(error, 'reason', None) or error}", fix)
    return found(answer)


def _store(root: str) -> Iterator[Finding]:
    """Whether this machine can use the root; the pods' own rights are those of their service account."""
    filesystem, _ = storage.open_filesystem(root)
    if is_local(filesystem):
        words = f"{root} is a folder of this machine, which no pod sees"
        yield Finding("root", "missing", words, "name a bucket: --root gs://BUCKET/FOLDER")
        return
    try:
        _check_bucket(root)
        runs = storage.list_dirs(storage.join(root, "runs"))
    except storage.StorageError as error:
        yield Finding("root: list", "missing", str(error), "see that the bucket is there and may be listed from here")
        return
    yield Finding("root: list", "ok", f"{root} holds {len(runs)} runs")
    yield _readable(root, runs)
    words = "can't be tried without writing: a run's first act is to create its run.json"
    yield Finding("root: write", "unknown", words, "give the steps' and the jobs' account the right to create objects")


def _data(uri: str | None) -> Finding:
    """Whether the log is where the document says; seen from this machine too."""
    if uri is None:
        return Finding("data", "unknown", "data.uri is not set: `thaw submit` makes what data.generate names")
    if is_local(storage.open_filesystem(uri)[0]):
        return Finding("data", "missing", f"data.uri {uri} is a folder of this machine", "name a bucket by data.uri")
    fix = "see that data.uri names the folder of the log, and may be listed from here"
    try:
        _check_bucket(uri)
        folders = storage.list_dirs(uri)
    except storage.StorageError as error:
        return Finding("data", "missing", str(error), fix)
    if not folders:
        return Finding("data", "missing", f"{uri} is not there, or holds no folder", fix)
    return Finding("data", "ok", f"{uri} holds {', '.join(folders[:4])}{' ...' if len(folders) > 4 else ''}")


def _check_bucket(uri: str) -> None:
    """Pass a URI whose bucket is there: a listing of a folder in it tells an absent bucket from an empty one by no
    word.

    Raises:
        StorageError: it is not there, or may not be listed.
    """
    with reporting(uri, "list"):
        filesystem, path = storage.open_filesystem(uri)
        filesystem.ls(path.partition("/")[0], detail=False)


def _readable(root: str, runs: list[str]) -> Finding:
    for run in runs[:-4:-1]:
        uri = storage.join(root, "runs", run, "run.json")
        try:
            storage.read_bytes(uri)
        except FileNotFoundError:
            continue
        except storage.StorageError as error:
            return Finding("root: read", "missing", str(error), "give the account the right to read objects")
        return Finding("root: read", "ok", uri)
    return Finding("root: read", "unknown", "there is no run yet to try it on")
