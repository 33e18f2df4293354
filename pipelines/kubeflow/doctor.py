"""Whether Kubeflow, the cluster and the store are ready for a run, found out without changing anything."""

from collections.abc import Iterator

from thaw.components.config import RunConfig
from thaw.components.launcher.kubernetes.doctor import Finding, check_cluster
from thaw.pipelines.kubeflow.client import Server, ServerError
from thaw.pipelines.kubeflow.schedule import NEEDED_VERSION


def findings(
    config: RunConfig, root: str, host: str | None, namespace: str | None, context: str | None, account: str | None
) -> Iterator[Finding]:
    """What was found, in the order in which it is needed.

    Args:
        config: The run's document.
        root: Where `runs/` lies.
        host: Of Kubeflow Pipelines.
        namespace: The user's.
        context: Of kubectl's configuration.
        account: Whose rights count, as `check_cluster` has it.
    """
    yield from _kubeflow(host, namespace)
    yield _image(config)
    yield from check_cluster(config, root, context, account)


def _kubeflow(host: str | None, namespace: str | None) -> Iterator[Finding]:
    try:
        server = Server(host, namespace)
    except (ServerError, ValueError) as error:
        yield Finding("Kubeflow", "missing", str(error), "give --host, or see that the server runs and knows you")
        return
    users = f"users apart, namespace {server.namespace}" if server.multi_user else "one user"
    yield Finding("Kubeflow", "ok", f"{server.host} answers ({users})")
    needed = "{}.{}".format(*NEEDED_VERSION)
    if server.version is None:
        fix = f"`thaw schedule` needs {needed}; find it out, and give it as --server-version"
        yield Finding("Kubeflow's version", "unknown", "the server does not say", fix)
    elif server.version < NEEDED_VERSION:
        words = "{}.{}: runs can be submitted".format(*server.version)
        yield Finding("Kubeflow's version", "missing", words, f"`thaw schedule` needs {needed}")
    else:
        yield Finding("Kubeflow's version", "ok", "{}.{}".format(*server.version))


def _image(config: RunConfig) -> Finding:
    image = config.cluster.image
    if "@sha256:" in image:
        return Finding("image", "unknown", f"{image}: whether it is there, the first pod tells")
    return Finding("image", "unknown", f"{image}: a tag, under which another image can come to lie", "name its digest")
