"""The record of a run as a whole, written before its first stage."""

import re
from typing import Any

from pydantic import ValidationError

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.section import Section
from thaw.components.runs.attempt import now
from thaw.components.runs.versions import versions

RUN = "run.json"

_RUN_ID = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]*")


class RunRecord(Section):
    """What a run was asked to do."""

    run_id: str
    created_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """The configuration document."""
    versions: dict[str, str]
    extra: dict[str, Any] = {}
    """What the caller adds: the date, the command."""


def create_run(root: str, run_id: str, config: RunConfig, extra: dict[str, Any] | None = None) -> str:
    """Claim a run's folder by its `run.json`.

    Args:
        root: Where `runs/` lies, any fsspec URI.
        run_id: Letters, digits, `-`, `_`, `.`.
        config: The run's document.
        extra: What JSON can hold, kept in the record.

    Returns:
        The folder's URI.

    Raises:
        ValueError: the id is no name of a folder, or taken.
        StorageError: the root cannot be written.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"run id {run_id!r}: only letters, digits, '-', '_' and '.', beginning with a letter or digit")
    run_uri = storage.join(root, "runs", run_id)
    record = RunRecord(
        run_id=run_id, created_at=now(), config=config.model_dump(mode="json"), versions=versions(), extra=extra or {}
    )
    try:
        storage.create_json(storage.join(run_uri, RUN), record.model_dump(mode="json"))
    except FileExistsError:
        raise ValueError(f"run id {run_id!r} is taken: {run_uri} is there, and no run is ever replaced; choose another")
    return run_uri


def read_run(run_uri: str) -> RunRecord:
    """What a run was asked to do.

    Raises:
        ValueError: there is no such run.
    """
    uri = storage.join(run_uri, RUN)
    try:
        return RunRecord.model_validate_json(storage.read_bytes(uri))
    except FileNotFoundError:
        raise ValueError(f"no run at {run_uri}: {RUN} is not there") from None
    except ValidationError as error:
        raise ValueError(f"{uri} is not the record of a run: {error}") from error


def list_runs(root: str) -> list[str]:
    """URIs of the runs under a root, by name."""
    folder = storage.join(root, "runs")
    uris = [storage.join(folder, name) for name in storage.list_dirs(folder)]
    return [uri for uri in uris if storage.exists(storage.join(uri, RUN))]
