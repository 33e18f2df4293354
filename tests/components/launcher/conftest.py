"""Commands for the tests' replicas."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes a Python script; gives the command that runs it."""

    def write(source: str, *arguments: str, program: str = Path(sys.executable).name) -> list[str]:
        path = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
        path.write_text(source)
        return [program, str(path), *arguments]

    return write
