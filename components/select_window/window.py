"""The window document: which days a run reads, and every file of them, pinned."""

import datetime
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pydantic import Field, ValidationError

from thaw.components import storage
from thaw.components.config.section import Section

FILE_NAME = "window.json"
"""Of the window document in the attempt folder of select-window."""


class DataFile(Section):
    """A Parquet file as it was when the window was selected."""

    uri: str
    day: datetime.date | None
    """The day of its folder; None where the files are not partitioned by day."""
    size: int = Field(ge=1)
    """In bytes."""
    version: str
    """`generation:<number>` on GCS, else `sha256:<hex>` of the content."""
    row_groups: tuple[int, ...]
    """Rows of each row group."""

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return sum(self.row_groups)


class Window(Section):
    """The days of a run and their files. What is not in here is not read by any later step."""

    date: datetime.date
    """D, the first day that training never reads."""
    training_days: tuple[datetime.date, ...]
    """The days of D - num_days ... D - 1 that are there; with `missing_days` they are all of them."""
    evaluation_days: tuple[datetime.date, ...]
    engagement_days: tuple[datetime.date, ...] = ()
    """The days of the engagement log that are there and that the backbone is pretrained on; they end the day before
    the window. Empty where the backbone is fetched."""
    missing_days: tuple[datetime.date, ...] = ()
    """Training days that are absent or empty, as the configuration allows."""
    missing_engagement_days: tuple[datetime.date, ...] = ()
    ignored_names: int = 0
    """Names that are no data: hidden, temporary, markers."""
    training: tuple[DataFile, ...]
    evaluation: tuple[DataFile, ...]
    engagements: tuple[DataFile, ...] = ()
    items: tuple[DataFile, ...] = ()
    truth: tuple[DataFile, ...] = ()
    """True probabilities of the evaluation days (generated data). Read by the evaluate step alone."""
    fingerprint: str
    """`sha256:<hex>` over path, size and version of all files: equal while nothing changed, else another."""

    @property
    def first_day(self) -> datetime.date:
        """D - num_days, be it there or missing."""
        return min(self.training_days + self.missing_days)

    def summary(self) -> dict[str, Any]:
        """What a stage's manifest says of the window: the days and the fingerprint, without the files."""
        files = {"training", "evaluation", "engagements", "items", "truth"}
        rows = {f"num_{name}_rows": sum(file.num_rows for file in getattr(self, name)) for name in sorted(files)}
        return {**self.model_dump(mode="json", exclude=files), **rows}


def read_window(uri: str) -> Window:
    """The window document of a URI.

    Raises:
        ValueError: it is not a window document.
        OSError: it is not there or cannot be read.
    """
    try:
        return Window.model_validate_json(storage.read_bytes(uri))
    except ValidationError as error:
        raise ValueError(f"{uri}: not a window document: {error}") from error


def fingerprint(files: Iterable[DataFile], data_uri: str) -> str:
    """`sha256:<hex>` over (path below the data's folder, size, version) of files, in any order."""
    root = storage.join(data_uri, "")
    pins = sorted((file.uri.removeprefix(root), file.size, file.version) for file in files)
    return f"sha256:{hashlib.sha256(json.dumps(pins).encode()).hexdigest()}"
