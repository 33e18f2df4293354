"""Progress and errors as JSON lines on stdout: what a step's log shows, and what `thaw run` draws as bars."""

import json
import sys
from typing import Any


def emit(event: str, **fields: Any) -> None:
    """Print one event as one line.

    Args:
        event: `progress` (stage, step, num_steps, loss, requests_per_s), `error` (rank, type, message), or
            another name.
        fields: what JSON can hold.
    """
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def parse(line: str) -> dict[str, Any] | None:
    """The event that a line of a log holds, also behind a prefix that a log collector put before it; else None."""
    start = line.find('{"event": ')
    if start < 0:
        return None
    try:
        event = json.loads(line[start:])
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
