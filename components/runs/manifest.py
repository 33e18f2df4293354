"""How an attempt ends: with a manifest, which commits it, or with a failure."""

from typing import Any

from thaw.components import storage
from thaw.components.config.section import Section, parsed
from thaw.components.runs.attempt import FAILURE, MANIFEST, Attempt


class NotCommittedError(ValueError):
    """An attempt without a manifest was to be read. Nothing in its folder may be trusted."""


class Reference(Section):
    """A committed attempt, and exactly the one that was seen."""

    uri: str
    """The attempt's folder."""
    digest: str
    """`sha256:<hex>` of its manifest's bytes."""


class StageManifest(Section):
    """What a stage did: from what, with what, and what came of it."""

    stage: str
    run_id: str
    attempt: int
    config: dict[str, Any]
    """The run's configuration document."""
    inputs: dict[str, Reference] = {}
    window: dict[str, Any] | None = None
    """The window's days and fingerprint (`Window.summary`)."""
    versions: dict[str, str]
    started_at: str
    """UTC, ISO 8601; `finished_at` too."""
    finished_at: str
    figures: dict[str, Any] = {}
    """What was measured. Numbers are finite."""
    outputs: dict[str, str] = {}
    """Paths below the attempt's folder, by name; or whole URIs of what lies elsewhere."""
    digests: dict[str, str] = {}
    """`sha256:<hex>` of the outputs that are files, and of the marks of those that are checkpoints."""


class Failure(Section):
    """Why an attempt ended without a manifest."""

    message: str
    stage: str
    replica: str | None = None
    """Of the PyTorchJob, as `worker-1`, where one was at fault."""
    exit_code: int | None = None
    signal: int | None = None
    last_lines: tuple[str, ...] = ()
    """Of the log of what failed."""
    hint: str | None = None
    """What to do next."""
    failed_at: str | None = None
    """UTC, ISO 8601."""


def commit(attempt: Attempt, manifest: StageManifest) -> Reference:
    """Publish an attempt. All its other files must be written by now.

    Raises:
        ValueError: JSON cannot hold a figure (NaN, infinity, a tensor).
        FileExistsError: it is committed already.
        StorageError: the manifest cannot be written.
    """
    try:
        # Not mode="json", which would write a NaN as null.
        data = storage.encode_json(manifest.model_dump())
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{attempt.stage}: a figure has no place in JSON: {error}; figures {manifest.figures}"
        ) from error
    storage.create_bytes(storage.join(attempt.uri, MANIFEST), data)
    return Reference(uri=attempt.uri, digest=storage.digest(data))


def read_manifest(attempt_uri: str) -> tuple[StageManifest, str]:
    """The manifest of a committed attempt, and the digest of its bytes.

    Raises:
        NotCommittedError: there is none.
        ValueError: it is damaged.
    """
    uri = storage.join(attempt_uri, MANIFEST)
    try:
        data = storage.read_bytes(uri)
    except FileNotFoundError:
        stage = attempt_uri.rstrip("/").split("/")[-2:][0]
        raise NotCommittedError(f"stage {stage} is not committed: {uri} is not there") from None
    return parsed(StageManifest, data, uri, "the manifest of a stage"), storage.digest(data)


def output_uri(attempt_uri: str, manifest: StageManifest, name: str) -> str:
    """Where an output of an attempt lies: below its folder, or where the manifest says by a whole URI.

    Raises:
        ValueError: it has no such output.
    """
    path = manifest.outputs.get(name)
    if path is None:
        raise ValueError(f"{storage.join(attempt_uri, MANIFEST)} names no output {name}")
    return path if "://" in path or path.startswith("/") else storage.join(attempt_uri, path)


def fail(attempt: Attempt, failure: Failure) -> None:
    """Record why an attempt ended.

    Raises:
        FileExistsError: a failure is recorded already.
        StorageError: it cannot be written.
    """
    storage.create_json(storage.join(attempt.uri, FAILURE), failure.model_dump(mode="json"))


def read_failure(attempt_uri: str) -> Failure | None:
    """Why an attempt ended, or None where no failure is recorded.

    Raises:
        ValueError: the record is damaged.
    """
    uri = storage.join(attempt_uri, FAILURE)
    try:
        return parsed(Failure, storage.read_bytes(uri), uri, "the record of a failure")
    except FileNotFoundError:
        return None
