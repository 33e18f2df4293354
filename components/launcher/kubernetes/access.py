"""Credentials: of a kubeconfig, or in a pod without one, of its service account."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config.incluster_config import SERVICE_HOST_ENV_NAME

NUM_CONNECTIONS = 32
"""How many requests can be under way at once."""

POD_NAMESPACE_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""In a pod, the namespace of the pod."""

_NUM_CONNECTIONS = 64
"""Kept open for the threads that share a client."""


def connect(context: str | None = None) -> ApiClient:
    """A connection with the credentials of now.

    The official client's own quiet retries are off: they have no pauses, and no end that fits a job of hours.

    Args:
        context: Of the kubeconfig; None: its current one.

    Raises:
        ValueError: there are no credentials, or there is no such context.
    """
    configuration = Configuration()
    with _explained():
        if _in_a_pod(context):
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(os.environ.get("KUBECONFIG"), context, client_configuration=configuration)
    configuration.retries = False
    configuration.connection_pool_maxsize = _NUM_CONNECTIONS
    configuration.connection_pool_maxsize = NUM_CONNECTIONS
    return ApiClient(configuration)


def namespace_of(context: str | None = None) -> str:
    """The namespace that kubectl takes where none is named: the context's, or the pod's own.

    Raises:
        ValueError: as `connect`.
    """
    if _in_a_pod(context):
        return POD_NAMESPACE_PATH.read_text().strip()
    with _explained():
        contexts, current = config.list_kube_config_contexts(os.environ.get("KUBECONFIG"))
    chosen = current if context is None else next((each for each in contexts if each["name"] == context), None)
    if chosen is None:
        raise ValueError(f"context {context!r}: the kubeconfig has only {', '.join(each['name'] for each in contexts)}")
    return str(chosen["context"].get("namespace", "default"))


def _in_a_pod(context: str | None) -> bool:
    return context is None and SERVICE_HOST_ENV_NAME in os.environ and "KUBECONFIG" not in os.environ


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        # A damaged kubeconfig is whatever its reader trips over.
        words = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | AttributeError) else str(error)
        raise ValueError(
            f"no access to a Kubernetes cluster: {' '.join(words.split())}; see that the kubeconfig is whole, set "
            f"KUBECONFIG to another, or run in a pod with a service account"
        ) from error
