"""Attempts of a stage: their folders, and who may write into them."""

import datetime
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from thaw.components import storage
from thaw.components.config.section import Section, parsed

CLAIM = "claim.json"
MANIFEST = "manifest.json"
FAILURE = "failure.json"

ATTEMPTS = "attempt-*"
"""Pattern of the attempts' folders."""

_ATTEMPT = re.compile(r"attempt-([1-9][0-9]*)")


class Claim(Section):
    """Who makes an attempt."""

    host: str
    pid: int
    process_started_at: float
    """Seconds since the epoch; tells the process from a later one of the same pid."""
    started_at: str
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class Attempt:
    """One try of a stage, and its folder."""

    run_uri: str
    stage: str
    number: int
    """From 1."""
    started_at: str
    """UTC, ISO 8601."""

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.run_uri.rstrip("/").rpartition("/")[2]

    @property
    def uri(self) -> str:
        """The folder."""
        return attempt_uri(self.run_uri, self.stage, self.number)


def begin_attempt(run_uri: str, stage: str) -> Attempt:
    """Claim the next attempt of a stage; of several processes that begin one, each gets its own."""
    number = max(attempt_numbers(run_uri, stage), default=0)
    while True:
        number += 1
        if (attempt := _claimed(run_uri, stage, number)) is not None:
            return attempt


def take_attempt(run_uri: str, stage: str) -> tuple[Attempt, bool]:
    """The open attempt of a stage, or else the next one; several processes that start at once all get the same.

    Returns:
        The attempt, and whether somebody else began it.
    """
    while True:
        number = max(attempt_numbers(run_uri, stage), default=0)
        # A folder can be there a moment before its claim is: then it is still to be had.
        if number == 0 or storage.exists(storage.join(attempt_uri(run_uri, stage, number), CLAIM)):
            if (attempt := _if_open(run_uri, stage, number)) is not None:
                return attempt, True
            number += 1
        if (attempt := _claimed(run_uri, stage, number)) is not None:
            return attempt, False


def _if_open(run_uri: str, stage: str, number: int) -> Attempt | None:
    """This very attempt, if it has neither been committed nor failed; 0 is none."""
    uri = attempt_uri(run_uri, stage, number)
    if number == 0 or any(storage.exists(storage.join(uri, end)) for end in (MANIFEST, FAILURE)):
        return None
    return Attempt(run_uri, stage, number, read_claim(uri).started_at)


def _claimed(run_uri: str, stage: str, number: int) -> Attempt | None:
    """This very attempt, claimed; None if it is somebody's."""
    process = psutil.Process(os.getpid())
    claim = Claim(
        host=socket.gethostname(), pid=process.pid, process_started_at=process.create_time(), started_at=now()
    )
    attempt = Attempt(run_uri, stage, number, claim.started_at)
    try:
        storage.create_json(storage.join(attempt.uri, CLAIM), claim.model_dump())
    except FileExistsError:
        return None
    return attempt


def read_claim(attempt_uri: str) -> Claim:
    """Who makes an attempt.

    Raises:
        ValueError: the claim is damaged.
    """
    uri = storage.join(attempt_uri, CLAIM)
    return parsed(Claim, storage.read_bytes(uri), uri, "the claim of an attempt")


def committed_attempt(run_uri: str, stage: str) -> str | None:
    """The folder of a stage's newest committed attempt, or None."""
    for number in reversed(attempt_numbers(run_uri, stage)):
        uri = attempt_uri(run_uri, stage, number)
        if storage.exists(storage.join(uri, MANIFEST)):
            return uri
    return None


def attempt_numbers(run_uri: str, stage: str) -> list[int]:
    """The attempts that a stage has had, in order."""
    matches = map(_ATTEMPT.fullmatch, storage.list_dirs(storage.join(run_uri, stage)))
    return sorted(int(match[1]) for match in matches if match)


def attempts_claimed(run_uri: str, stage: str, files: Iterable[str]) -> list[int]:
    """The attempts that a stage has had, in order, by the URIs of its run's files."""
    folder = storage.join(run_uri, stage, "")
    names = (file.removeprefix(folder).removesuffix(f"/{CLAIM}") for file in files)
    matches = map(_ATTEMPT.fullmatch, names)
    return sorted(int(match[1]) for match in matches if match)


def attempt_uri(run_uri: str, stage: str, number: int) -> str:
    """The folder of an attempt."""
    return storage.join(run_uri, stage, f"attempt-{number}")


def now() -> str:
    """The time, UTC, ISO 8601, in seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
