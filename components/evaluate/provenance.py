"""What the report says of the run itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thaw.components.config.recipe import Policy


@dataclass(frozen=True)
class StageRecord:
    """A stage that ran, as its manifest tells."""

    name: str
    seconds: float
    policy: Policy | None = None
    """Of a training stage; None for the others, which have no losses either."""
    num_rows: int | None = None
    """Rows read, where the stage counts them."""
    losses: tuple[tuple[int, float], ...] = ()
    """(step, loss) as logged; steps begin anew with each stage."""


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    run_id: str
    stages: tuple[StageRecord, ...]
    """In the order in which they ran."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of software, by name."""
