"""An API server, with its objects as they are in JSON."""

import json
from typing import Any

from kubernetes import config
from kubernetes.client import ApiException

_PREFIXES = {
    "pytorchjobs": "/apis/kubeflow.org/v1",
    "deployments": "/apis/apps/v1",
    "roles": "/apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "/apis/rbac.authorization.k8s.io/v1",
}
JOBS, PODS, SERVICES = "pytorchjobs", "pods", "services"


class Api:
    """Requests to an API server. What it refuses is an ApiException.

    Args:
        kubeconfig: File that says where it is and who asks.
    """

    def __init__(self, kubeconfig: str):
        self._client = config.new_client_from_config(kubeconfig)

    def request(self, method: str, path: str, body: Any = None, answer: str = "object", **query: Any) -> Any:
        """What the server answers to one request; `answer` is "str" where it isn't JSON."""
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        return self._client.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": "application/json, */*"},
            body=body,
            response_type=answer,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _request_timeout=30,
        )

    def list(self, namespace: str | None, plural: str, **query: Any) -> list[dict[str, Any]]:
        """The objects of a kind: of one namespace, of all or of none."""
        return self.request("GET", path(namespace, plural), **query)["items"]

    def get(self, namespace: str | None, plural: str, name: str) -> dict[str, Any] | None:
        """An object, or None where there is none."""
        try:
            return self.request("GET", path(namespace, plural, name))
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def create(self, namespace: str | None, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        """The object as the server made it."""
        return self.request("POST", path(namespace, plural), body)

    def set_status(self, namespace: str, plural: str, body: dict[str, Any]) -> None:
        """Replaces the status of an object; a conflict where it has changed since `body` was read."""
        self.request("PUT", path(namespace, plural, body["metadata"]["name"], "status"), body)

    def delete(
        self, namespace: str | None, plural: str, name: str, grace_s: int | None = None, propagation: str | None = None
    ) -> None:
        """Deletes an object; one that is gone already is no error."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options |= {"gracePeriodSeconds": grace_s} if grace_s is not None else {}
        options |= {"propagationPolicy": propagation} if propagation is not None else {}
        try:
            self.request("DELETE", path(namespace, plural, name), options)
        except ApiException as error:
            if error.status != 404:
                raise

    def log(self, namespace: str, pod: str, **query: Any) -> str:
        """What a pod has written."""
        return self.request("GET", path(namespace, PODS, pod, "log"), answer="str", **query)

    def kubeconfig_of(self, token: str, namespace: str) -> str:
        """A kubeconfig for this server, with another's token."""
        context = {"cluster": "it", "user": "it", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": self._client.configuration.host}}],
            "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": context}],
            "current-context": "it",
        }
        if authority := self._client.configuration.ssl_ca_cert:
            document["clusters"][0]["cluster"]["certificate-authority"] = authority
        else:
            document["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
        return json.dumps(document)


def path(namespace: str | None, plural: str, *parts: str) -> str:
    """Path of a kind's collection, of an object, or of a part of it."""
    prefix = _PREFIXES.get(plural, "/api/v1")
    scope = [] if namespace is None else ["namespaces", namespace]
    return "/".join([prefix, *scope, plural, *parts])
