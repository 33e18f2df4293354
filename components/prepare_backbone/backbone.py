"""What a backbone is: pretrained tables, the days that they saw, and when a run must refuse them."""

import datetime
import hashlib
from collections.abc import Sequence

from pydantic import ValidationError

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.config.section import Section

BACKBONE = "backbone.json"


class BackboneError(ValueError):
    """A backbone that this run must not use. The message says which, why, and both values."""


class TableShape(Section):
    """One table of a backbone."""

    num_rows: int
    dim: int
    hashed: bool
    """Whether every id was hashed to its row: else ids are row numbers, and the same id means another row."""


class Backbone(Section):
    """The manifest of a backbone, `backbone.json` beside its tensors."""

    trained_through: datetime.date
    """The last day that it saw."""
    engagement_days: tuple[datetime.date, ...]
    """All days that it saw."""
    tables: dict[str, TableShape]
    created_at: datetime.datetime
    config_digest: str
    """sha256 of the configuration document that it was trained by."""

    @classmethod
    def of(cls, config: RunConfig, engagement_days: Sequence[datetime.date]) -> "Backbone":
        """The manifest of a backbone that was trained by `config` on `engagement_days`, as of now."""
        return cls(
            trained_through=max(engagement_days),
            engagement_days=tuple(sorted(engagement_days)),
            tables=_shapes(config),
            created_at=datetime.datetime.now(datetime.UTC),
            config_digest=hashlib.sha256(config.model_dump_json().encode()).hexdigest(),
        )


def read_backbone(uri: str) -> Backbone:
    """The manifest of the backbone in a checkpoint's folder.

    Raises:
        BackboneError: the folder has none.
    """
    place = storage.join(uri, BACKBONE)
    try:
        return Backbone.model_validate_json(storage.read_bytes(place))
    except FileNotFoundError:
        raise BackboneError(f"{uri} is no backbone: {BACKBONE} is missing")
    except ValidationError as error:
        raise BackboneError(f"{place} is not the manifest of a backbone: {error}")


def refuse_unfit(
    backbone: Backbone, config: RunConfig, date: datetime.date, window_first_day: datetime.date, *, uri: str
) -> None:
    """Pass a backbone that this run may use.

    Args:
        backbone: Its manifest.
        config: The run's configuration.
        date: D, the first day that training never reads.
        window_first_day: First day of the window.
        uri: Its folder, for the message.

    Raises:
        BackboneError: it saw D or later; it saw days of the window and that isn't allowed; it is too old; its tables
            are not the run's.
    """
    faults = date_faults(backbone, config, date, window_first_day) + table_faults(backbone, config)
    if faults:
        raise BackboneError(f"backbone {uri}: " + "; ".join(faults))


def date_faults(
    backbone: Backbone, config: RunConfig, date: datetime.date, window_first_day: datetime.date
) -> list[str]:
    """Why its days keep the backbone from this run; empty where they don't."""
    fetch, through = config.backbone.fetch, backbone.trained_through
    if through >= date:
        return [f"trained through {through}, which is not before the run's date {date}"]
    if through >= window_first_day and not (fetch and fetch.allow_window_days):
        return [
            f"trained through {through}, and the window begins on {window_first_day}; "
            f"backbone.fetch.allow_window_days accepts that"
        ]
    age_days = (date - through).days
    if fetch and age_days > fetch.max_age_days:
        return [
            f"trained through {through}, {age_days} days before the run's date {date}; "
            f"backbone.fetch.max_age_days is {fetch.max_age_days}"
        ]
    return []


def table_faults(backbone: Backbone, config: RunConfig) -> list[str]:
    """Where the backbone's tables differ from the run's; empty where they don't."""
    found, wanted = backbone.tables, _shapes(config)
    if set(found) != set(wanted):
        return [f"its tables are {sorted(found)}, and the run's are {sorted(wanted)}"]
    return [
        f"table {name} has {key} {getattr(found[name], key)}, and the run's has {getattr(wanted[name], key)}"
        for name in sorted(wanted)
        for key in TableShape.model_fields
        if getattr(found[name], key) != getattr(wanted[name], key)
    ]


def _shapes(config: RunConfig) -> dict[str, TableShape]:
    return {
        name: TableShape(num_rows=table.num_rows, dim=config.model.dim, hashed=table.out_of_range == "hash")
        for name, table in config.data.tables.items()
    }
