from pathlib import Path

import pytest
from scored_log import Scored, scored_log


@pytest.fixture
def scored(tmp_path: Path) -> Scored:
    return scored_log(tmp_path)
