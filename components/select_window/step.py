"""The step `select-window`: the first of a run, and the only one that looks for files."""

from typing import Any, Protocol

from thaw.components import storage
from thaw.components.config import from_parameter
from thaw.components.events import emit
from thaw.components.runs import stage
from thaw.components.select_window.calendar import parse_date
from thaw.components.select_window.selection import select
from thaw.components.select_window.window import FILE_NAME

STAGE = "select-window"


class WindowArtifact(Protocol):
    """What the step needs of KFP's artifact."""

    uri: str
    metadata: dict[str, Any]


def run(config: str, run_uri: str, date: str, window: WindowArtifact) -> str:
    """Writes the window document into a new attempt, and commits it.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        date: D, YYYY-MM-DD.
        window: Gets the attempt's folder, and the window's summary.

    Returns:
        The fingerprint of all pinned files.

    Raises:
        ValueError: the date is none; nothing was listed or written by then.
        WindowError: days or files are not there, or broken.
    """
    day = parse_date(date)
    settings = from_parameter(config)
    with stage(settings, run_uri, STAGE) as attempt:
        selected = select(settings, day)
        if missing := [*selected.missing_engagement_days, *selected.missing_days]:
            days = ", ".join(map(str, missing))
            emit("warning", stage=STAGE, message=f"{len(missing)} missing days, as the configuration allows: {days}")
        storage.create_bytes(storage.join(attempt.uri, FILE_NAME), selected.model_dump_json(indent=1).encode())
        summary = selected.summary()
        attempt.commit(outputs={"window": FILE_NAME}, window=summary)
    window.uri = attempt.uri
    window.metadata.update(summary)
    return selected.fingerprint
