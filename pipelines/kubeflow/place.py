"""What a run reads, writes and runs as, passed before anything is sent: its pods find out hours later."""

import datetime
import re

import fsspec

from thaw.components.config import RunConfig
from thaw.components.config.training import DEFAULT_IMAGE

MAX_RETRIES = 100
MAX_EXPERIMENT_LENGTH = 128

_OF_ONE_MACHINE = ("file", "local", "memory")
_ACCOUNT = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


def check_reachable(uri: str | None, parameter: str) -> None:
    """Pass a URI that pods of a cluster can reach as well as this machine.

    Raises:
        ValueError: a path or a scheme of this machine alone, one that no file system here knows, or no URI of a folder.
    """
    if uri is None:
        raise ValueError(f"{parameter} is not set: name the folder of the data set")
    scheme, separator, path = uri.partition("://")
    if not separator or scheme in _OF_ONE_MACHINE:
        raise ValueError(
            f"{parameter}: {uri} is on this machine, where the cluster's pods can't reach it; give a URI, as gs://..."
        )
    check_no_password(uri, parameter)
    if scheme not in fsspec.available_protocols():
        raise ValueError(f"{parameter}: {uri} has a scheme that fsspec does not know; give one as gs:// or s3://")
    if not path.partition("/")[0]:
        raise ValueError(f"{parameter}: {uri} names no bucket; give one, as {scheme}://bucket/folder")
    if ".." in path.split("/") or any(letter in "?#" or not letter.isprintable() for letter in path):
        raise ValueError(f"{parameter}: {uri!r} has a '..', '?', '#' or line break; give the plain URI of a folder")


def check_no_password(uri: str | None, parameter: str) -> None:
    """Pass a URI that can be shown to everyone.

    Raises:
        ValueError: a password is in it, which the message leaves out.
    """
    authority = (uri or "").partition("://")[2].partition("/")[0]
    if ":" in authority.rpartition("@")[0]:
        raise ValueError(f"{parameter}: a password in a URI is seen by everyone; give it to the store's own client")


def check_place(config: RunConfig, root: str, kind: str) -> None:
    """Pass a run of which pods can reach all that it reads and writes.

    Raises:
        ValueError: the root, the data, or where a backbone is fetched from or published to can't be reached by them.
    """
    check_reachable(root, "--root")
    check_reachable(config.data.uri, "data.uri")
    fetch = config.backbone.fetch
    places = {
        "backbone.fetch.uri": fetch.uri if fetch else None,
        "backbone.fetch.prefix_uri": fetch.prefix_uri if fetch else None,
        "backbone.publish_prefix_uri": config.backbone.publish_prefix_uri if kind.startswith("backbone") else None,
    }
    for parameter, uri in places.items():
        if uri is not None:
            check_reachable(uri, parameter)


def check_placement(experiment: str, service_account: str | None, pipeline_root: str | None) -> None:
    """Pass names that Kubeflow and Kubernetes take.

    Raises:
        ValueError: with the option, and what it takes.
    """
    if not experiment.strip() or not experiment.isprintable() or len(experiment) > MAX_EXPERIMENT_LENGTH:
        raise ValueError(
            f"--experiment {experiment!r}: a name has 1 to {MAX_EXPERIMENT_LENGTH} characters, on one line"
        )
    if service_account is not None and not _ACCOUNT.fullmatch(service_account):
        raise ValueError(
            f"--service-account {service_account!r}: Kubernetes takes small letters, digits, '-' and '.', beginning "
            f"and ending with a letter or digit"
        )
    if pipeline_root is not None:
        scheme, separator, path = pipeline_root.partition("://")
        if scheme != "minio" or not separator or not path:  # Kubeflow's own store, which no file system here knows
            check_reachable(pipeline_root, "--pipeline-root")


def check_retries(num_retries: int) -> None:
    """Pass a number of tries that Argo takes, and that ends.

    Raises:
        ValueError: it is negative, or beyond reason.
    """
    if not 0 <= num_retries <= MAX_RETRIES:
        raise ValueError(f"--retries {num_retries}: give 0 to {MAX_RETRIES}")


def check_over(date: datetime.date, config: RunConfig, parameter: str) -> None:
    """Pass a D whose evaluation days are over, by the date of UTC.

    Raises:
        ValueError: they aren't; with the last D whose days are.
    """
    num_days = config.data.window.num_evaluation_days
    last = utc_today() - datetime.timedelta(days=num_days)
    if date > last:
        raise ValueError(
            f"{parameter} {date}: D and the days after it are evaluated, {num_days} in all "
            f"(data.window.num_evaluation_days), and are not over yet; the last D whose days are is {last}"
        )


def utc_today() -> datetime.date:
    """The date, UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def image_warning(config: RunConfig) -> str | None:
    """What to say of an image that can come to mean another one; None of one that is named by its digest."""
    image = config.cluster.image
    if "@sha256:" in image:
        return None
    fault = "the default of cluster.image" if image == DEFAULT_IMAGE else "a tag"
    return f"warning: image {image} is {fault}, which can come to mean another between two tries; name its digest"
