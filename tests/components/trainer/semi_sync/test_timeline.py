"""The timeline of the README is the one of the code."""

from pathlib import Path

from thaw.components.trainer import semi_sync
from thaw.components.trainer.semi_sync import schedule


def test_the_readme_shows_the_timeline_that_the_schedule_opens_with() -> None:
    readme = Path(semi_sync.__file__).with_name("README.md").read_text()
    rows = [line.removeprefix("    ") for line in (schedule.__doc__ or "").splitlines() if line.startswith("    ")]
    assert len(rows) == 7
    assert "\n".join(rows) in readme
