"""The mark of a stage that was asked for what can't be done, so that another try of the same ends at once."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from thaw.components import storage
from thaw.components.config.section import Section, parsed
from thaw.components.refused import RefusedError
from thaw.components.runs.attempt import now

REFUSED = "refused.json"


class Refusal(Section):
    """The mark `<stage>/refused.json`."""

    message: str
    asked: str
    """Digest of what was asked for. Something else asked for in the same place isn't refused by it."""
    refused_at: str
    """UTC, ISO 8601."""


@contextmanager
def refusing(run_uri: str, stage: str, *asked: str) -> Iterator[None]:
    """Leaves a mark of a RefusedError that the block raises; where the mark is there, the block isn't entered.

    Args:
        run_uri: Folder of the run.
        stage: The stage.
        asked: The parameters at fault, if any is.

    Raises:
        RefusedError: in the words of the first time.
    """
    uri = storage.join(run_uri, stage, REFUSED)
    digest = storage.digest(json.dumps(asked).encode())
    refusal = read_refusal(run_uri, stage)
    if refusal is not None and refusal.asked == digest:
        raise RefusedError(refusal.message)
    try:
        yield
    except RefusedError as error:
        mark = Refusal(message=str(error), asked=digest, refused_at=now())
        try:
            storage.create_json(uri, mark.model_dump(mode="json"))
        except FileExistsError:
            pass  # of another request, or left by another try of this one: the first one stays
        except OSError as fault:
            error.add_note(f"The refusal could not be recorded: {fault}")
        raise


def read_refusal(run_uri: str, stage: str) -> Refusal | None:
    """The mark of a stage, or None.

    Raises:
        ValueError: it is damaged.
    """
    uri = storage.join(run_uri, stage, REFUSED)
    try:
        return parsed(Refusal, storage.read_bytes(uri), uri, "the mark of a refusal")
    except FileNotFoundError:
        return None
