"""Promoted runs: of each date at most one, ever.

    <root>/promoted/<D>.json    the run that claimed D, created once and never replaced

The latest is that of the greatest date. So a run of an older date that ends later displaces nothing.
"""

import datetime
import re
from dataclasses import dataclass
from typing import Literal

from thaw.components import storage
from thaw.components.config.section import Section, parsed
from thaw.components.evaluate.result import read_result
from thaw.components.runs import Reference, StageManifest, check_output, output_uri
from thaw.components.runs.attempt import now

_CLAIM = re.compile(r"(\d{4}-\d{2}-\d{2})\.json")

Scores = dict[str, dict[str, float | None]]
"""What evaluate found of the model on the evaluation days: by head, by metric, as `metrics.json` names them."""


class ClaimedError(ValueError):
    """Another run is promoted for the date. The message names both."""


class Promoted(Section):
    """The claim of a date."""

    date: datetime.date
    """D of the run."""
    run_id: str
    run_uri: str
    evaluate: Reference
    """The attempt at evaluate that was judged."""
    scores: Scores
    metric: str | None
    """What the gate looked at, as `click auc`; None where there was none."""
    by: Literal["gate", "hand"]
    promoted_at: str
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class DamagedClaim:
    """The claim of a date that can't be read."""

    date: datetime.date
    fault: str
    """With the claim's URI."""


def read_scores(reference: Reference, manifest: StageManifest) -> Scores:
    """The scores of a committed attempt at evaluate.

    Raises:
        ChangedOutputError: they aren't what evaluate wrote.
        OSError: they can't be read.
    """
    check_output(reference, manifest, "metrics")
    result = read_result(output_uri(reference.uri, manifest, "metrics"))
    names = {"auc", "hit", "log_loss", "ne", "ece"}
    return {head.name: head.model.model_dump(include=names) for head in result.heads}


def claim(run_uri: str, reference: Reference, manifest: StageManifest, metric: str | None) -> Promoted:
    """Promote a run for its date. Twice is the same as once.

    Args:
        run_uri: Folder of the run.
        reference: The attempt at evaluate that speaks for it.
        manifest: Its manifest.
        metric: What a gate looked at; None where somebody decided by hand.

    Raises:
        ClaimedError: another run is promoted for the date.
        ChangedOutputError, OSError: as `read_scores`.
    """
    assert manifest.window is not None
    root, _, run_id = run_uri.rpartition("/runs/")
    promoted = Promoted(
        date=datetime.date.fromisoformat(manifest.window["date"]),
        run_id=run_id,
        run_uri=run_uri,
        evaluate=reference,
        scores=read_scores(reference, manifest),
        metric=metric,
        by="gate" if metric else "hand",
        promoted_at=now(),
    )
    uri = storage.join(root, "promoted", f"{promoted.date}.json")
    try:
        storage.create_json(uri, promoted.model_dump(mode="json"))
    except FileExistsError:
        present = _read(uri)
        if present.run_id != run_id:
            raise ClaimedError(
                f"{promoted.date} is claimed by run {present.run_id}, promoted at {present.promoted_at} ({uri}); of a "
                f"date one run is promoted, once"
            )
        return present
    return promoted


def promoted_runs(root: str) -> list[Promoted | DamagedClaim]:
    """All promoted runs, the latest date first. A claim that can't be read hides no other."""

    def read(date: datetime.date, uri: str) -> Promoted | DamagedClaim:
        try:
            return _read(uri)
        except (ValueError, OSError) as error:
            return DamagedClaim(date, str(error))

    return [read(date, uri) for date, uri in _claims(root)]


def latest(root: str, before: datetime.date | None = None) -> Promoted | None:
    """The promoted run of the greatest date, or None.

    Args:
        root: Where `runs/` and `promoted/` lie.
        before: Look at dates before this one alone.

    Raises:
        ValueError: its claim is damaged. The run of another date is not taken for it.
        OSError: it can't be read.
    """
    for date, uri in _claims(root):
        if before is None or date < before:
            return _read(uri)
    return None


def _claims(root: str) -> list[tuple[datetime.date, str]]:
    """Date and URI of every claim, the latest first."""
    dated = []
    for file in storage.list_files(storage.join(root, "promoted")):
        # Else it is what a writer that was killed left, as `.2026-03-02.json.0a1b.tmp`, or no claim at all.
        if match := _CLAIM.fullmatch(file.path.rpartition("/")[2]):
            try:
                dated.append((datetime.date.fromisoformat(match[1]), file.path))
            except ValueError:
                continue  # 2026-02-30
    return sorted(dated, reverse=True)


def _read(uri: str) -> Promoted:
    promoted = parsed(Promoted, storage.read_bytes(uri), uri, "the claim of a promoted run")
    if not uri.endswith(f"/{promoted.date}.json"):
        raise ValueError(f"{uri} is not the claim of its date: it says {promoted.date}")
    return promoted
