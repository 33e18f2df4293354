"""A Docker engine as the tests use it, by its own command line."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

READ_ONLY = ("--read-only", "--tmpfs", "/tmp")
"""A root file system as a careful cluster gives it."""
HOME = Path("/home/thaw")
"""Of the image's user."""


def docker(*arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """What a command of docker printed, and how it ended."""
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True, text=True)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)[:500]}\n{done.stdout}{done.stderr}"
    return done


def run(image: str, command: Sequence[str], *flags: str, stdin: str | None = None, check: bool = True):
    """A command in a container that reaches no network and is gone after it."""
    given = [] if any(flag.startswith("--network") for flag in flags) else ["--network=none"]
    stdin_flag = ["--interactive"] if stdin is not None else []
    return docker("run", "--rm", *given, *stdin_flag, *flags, image, *command, stdin=stdin, check=check)


def at_home(volume: str) -> tuple[str, ...]:
    """Flags that mount a volume as the user's home and leave /tmp the only other place to write to."""
    return (*READ_ONLY, "--volume", f"{volume}:{HOME}")


def read(image: str, volume: str, path: str) -> str:
    """A file of a volume that is mounted as the user's home."""
    return run(image, ["cat", path], *at_home(volume)).stdout


@contextmanager
def started(image: str, command: Sequence[str], *flags: str) -> Iterator[str]:
    """The id of a container at work; it is gone after the block."""
    container = docker("run", "--detach", *flags, image, *command).stdout.strip()
    try:
        yield container
    finally:
        docker("rm", "--force", container)


@contextmanager
def made(kind: str) -> Iterator[str]:
    """The name of a new `volume` or `network`; it is gone after the block."""
    name = f"thaw-test-{uuid4().hex[:12]}"
    docker(kind, "create", name)
    try:
        yield name
    finally:
        docker(kind, "rm", name)


def follow(container: str) -> Iterator[str]:
    """The lines of a container's log as they come, until it ends."""
    command = ["docker", "logs", "--follow", container]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as log:
        assert log.stdout is not None
        try:
            yield from log.stdout
        finally:
            log.kill()


def exit_code(container: str) -> int:
    """How a container ended, once it has."""
    return int(docker("wait", container).stdout)
