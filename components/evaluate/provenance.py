"""What the report says of the run itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thaw.components.config.recipe import Policy


@dataclass(frozen=True)
class TraceEvent:
    """What a row of the pipeline did for a batch, in seconds."""

    row: str
    where: str
    """Thread or stream."""
    batch: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class PipelineRecord:
    """What the semi-synchronous pipeline measured of a training stage; means over steps and ranks."""

    staleness: int
    """The most updates that a batch's rows lacked."""
    ms_a_step: Mapping[str, float]
    """Of each row, `wait` among them."""
    bytes_a_step: Mapping[str, float]
    """That each link delivers to a rank."""
    hidden_fraction: float
    """Share of the links' time for which the dense half did not have to wait."""
    exposed_share_before: float
    """Share of a step that the links would take if nothing ran beside them."""
    exposed_share_after: float
    """Share of a step that the dense half waited."""
    shared_rows_share: float | None
    """Share of a batch's rows that the batch before had named too."""
    trace: tuple[TraceEvent, ...] = ()
    """Of a few steps, on rank 0."""

    @property
    def bytes_of_a_step(self) -> float:
        """All of them."""
        return sum(self.bytes_a_step.values())


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
    pipeline: PipelineRecord | None = None
    run_id: str | None = None
    """The run that it was part of, where that is another than the evaluated one."""


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    run_id: str
    stages: tuple[StageRecord, ...]
    """In the order in which they ran."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of software, by name."""
