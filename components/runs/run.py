"""The record of a run as a whole, written before its first stage."""

import re
from typing import Any

from pydantic import ValidationError, model_validator

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.section import Section, faults, parsed
from thaw.components.runs.attempt import now
from thaw.components.runs.manifest import Reference
from thaw.components.runs.stages import recorded_stages
from thaw.components.runs.versions import versions

RUN = "run.json"

_RUN_ID = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]*")


class Parent(Section):
    """Of a rerun: where it begins, and what it builds on."""

    run: str
    """Id of the run that it repeats."""
    stage: str
    """The first stage that it does itself."""
    inputs: dict[str, Reference]
    """The attempts that it builds on, by stage. They may be of the parent's parent."""


class RunRecord(Section):
    """What a run was asked to do."""

    run_id: str
    created_at: str
    """UTC, ISO 8601."""
    config: dict[str, Any]
    """The configuration document."""
    versions: dict[str, str]
    extra: dict[str, Any] = {}
    """What the caller adds: the date, the backend, the kind, the parent."""

    @model_validator(mode="after")
    def _check(self) -> "RunRecord":
        recorded_stages(self.config, self.extra)
        if not isinstance(self.extra.get("date", ""), str):
            raise ValueError(f"extra.date is {self.extra['date']!r}, and no text")
        try:
            parent_of(self)
        except ValidationError as error:
            raise ValueError(f"extra.parent: {faults(error)}") from None
        return self


def parent_of(record: RunRecord) -> Parent | None:
    """The parent that a run's record names; None of a run that is no rerun."""
    parent = record.extra.get("parent")
    return None if parent is None else Parent.model_validate(parent)


def check_run_id(run_id: str) -> None:
    """Pass what can name a run.

    Raises:
        ValueError: it is no name of a folder.
    """
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"run id {run_id!r}: only letters, digits, '-', '_' and '.', beginning with a letter or digit")


def run_folder(root: str, run_id: str) -> str:
    """The URI of a run's folder, where there is such a run.

    Raises:
        ValueError: the id is no name of a folder.
    """
    check_run_id(run_id)
    return storage.join(root, "runs", run_id)


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
    record = _record(run_id, config, extra or {})
    run_uri = run_folder(root, run_id)
    try:
        storage.create_json(storage.join(run_uri, RUN), record.model_dump(mode="json"))
    except FileExistsError:
        raise ValueError(f"run id {run_id!r} is taken: {run_uri} is there, and no run is ever replaced; choose another")
    return run_uri


def open_run(run_uri: str, config: RunConfig, extra: dict[str, Any]) -> RunRecord:
    """The record of a run: the one that is there, else made now. Of several that open a run, all get the same.

    Whether it is the caller's own run is for the caller to tell, by `config` and `extra`.

    Args:
        run_uri: Folder of the run, `<root>/runs/<run id>`.
        config: The run's document, for a record that is made.
        extra: As of `create_run`, for a record that is made.

    Raises:
        ValueError: the URI is no folder of a run, or the record is damaged.
        StorageError: the root cannot be written.
    """
    folder, _, run_id = run_uri.rpartition("/")
    root, _, runs = folder.rpartition("/")
    if runs != "runs" or not root:
        raise ValueError(f"run_uri: {run_uri!r} is not the folder of a run; give <root>/runs/<run id>")
    record = _record(run_id, config, extra)
    try:
        storage.create_json(storage.join(run_uri, RUN), record.model_dump(mode="json"))
    except FileExistsError:
        return read_run(run_uri)
    return record


def read_run(run_uri: str) -> RunRecord:
    """What a run was asked to do.

    Raises:
        ValueError: there is no such run, or its record is damaged.
    """
    uri = storage.join(run_uri, RUN)
    try:
        return parsed(RunRecord, storage.read_bytes(uri), uri, "the record of a run")
    except FileNotFoundError:
        raise ValueError(f"no run at {run_uri}: {RUN} is not there") from None


def _record(run_id: str, config: RunConfig, extra: dict[str, Any]) -> RunRecord:
    check_run_id(run_id)
    document = config.model_dump(mode="json")
    return RunRecord(run_id=run_id, created_at=now(), config=document, versions=versions(), extra=extra)
