"""What runs on a GPU: skipped, with the reason, where there is none or the software is another build.

The models, the ranks and the oracle are those of the trainer's own tests.
"""

import sys
from functools import cache
from pathlib import Path

import pytest

TRAINER = Path(__file__).parents[1] / "components" / "trainer"
sys.path[:0] = [str(folder) for folder in (TRAINER, TRAINER / "semi_sync") if str(folder) not in sys.path]


@cache
def why_not() -> str | None:
    """What keeps these tests from running here: one line, or None."""
    from thaw.components.trainer.startup import check_software
    from thaw.components.versions import VersionError

    try:
        check_software("cuda")
    except (VersionError, ImportError, OSError) as error:
        return f"no CUDA check on this machine: {error}"
    return None


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
