"""What the pipeline says of itself: where the time of a step went, how stale its rows were, what was exchanged.

Times are kept as marks and read two steps later, when they have passed: on CUDA a mark is an event, and nobody waits.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torchrec import KeyedJaggedTensor

from thaw.components.trainer.semi_sync.places import DENSE, INPUT_DIST, LOOKUP, SPARSE_BACKWARD, WAIT, Mark, Place
from thaw.components.trainer.torchrec_internals import features_by_table

CHAIN = (INPUT_DIST, LOOKUP, SPARSE_BACKWARD)


@dataclass(frozen=True)
class TraceEvent:
    """Something that a row did for a batch, in seconds since the first step."""

    row: str
    where: str
    """Thread or stream."""
    batch: int
    begin_s: float
    end_s: float


@dataclass
class StepFigures:
    """One batch's way through the pipeline, on this rank."""

    step: int
    """Batches of this pipeline before it, over all epochs."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By row, `wait` among them: the time in which the dense row stood still for the rows of this batch."""
    staleness: int = 0
    """Updates that the rows of trained tables lacked, counted in the chain itself."""
    num_bytes: dict[str, int] = field(default_factory=dict)
    """By row: what its all-to-alls deliver to this rank, its own part included, as computed from shapes. A row-wise
    pooled feature is delivered as one partial sum a rank. The gradient goes the way of the rows, backwards."""
    num_rows: int | None = None
    """Distinct rows that this rank holds and all ranks' batches name; None in a step where they weren't counted."""
    num_shared_rows: int | None = None
    """Those of them that the batch before named too: the ones that staleness concerns."""

    @property
    def chain_s(self) -> float:
        """Time of all links."""
        return sum(self.seconds.get(row, 0.0) for row in CHAIN)

    @property
    def hidden_fraction(self) -> float:
        """Share of the links' time for which the dense row didn't have to wait."""
        return max(0.0, 1 - self.seconds.get(WAIT, 0.0) / self.chain_s) if self.chain_s else 1.0


class Figures:
    """Collects the figures of every step and, for a few steps, the events for a picture."""

    def __init__(self, place: Place, trace_steps: range, count_rows_every: int) -> None:
        self._place, self._trace_steps, self._every = place, trace_steps, count_rows_every
        self._marks: deque[tuple[str, int, Mark, Mark]] = deque()
        self._open: dict[int, StepFigures] = {}
        self._lock = threading.Lock()
        self._origin: Mark | None = None
        self._named: dict[str, tuple[int, dict[str, torch.Tensor]]] = {}
        self.trace: list[TraceEvent] = []
        """Events of `trace_steps`."""
        self.done: deque[StepFigures] = deque(maxlen=4096)
        """Steps that are over, oldest first; take from the left what has been read."""

    @contextmanager
    def row(self, row: str, batch: int, after: Mark | None = None) -> Iterator[None]:
        """Run what is inside on this row, behind a mark, for this batch, timed and named in the profiler.

        Time in which the row waits for the mark isn't counted.
        """
        with self._place.on(row), torch.profiler.record_function(row):
            if after is not None:
                self._place.after(after)
            begin = self._place.mark()
            yield
            self.add(row, batch, begin, self._place.mark())

    def add(self, row: str, batch: int, begin: Mark, end: Mark) -> None:
        """A stretch of time. What is done for no batch isn't counted."""
        if batch >= 0:
            self._marks.append((row, batch, begin, end))

    def of(self, batch: int) -> StepFigures:
        """The figures of a batch that is under way."""
        with self._lock:
            return self._open.setdefault(batch, StepFigures(batch))

    def finish(self, before: int) -> None:
        """Read the times of batches whose last link has long run: those before this one."""
        waiting: deque[tuple[str, int, Mark, Mark]] = deque()
        while self._marks:
            row, batch, begin, end = item = self._marks.popleft()
            if batch >= before:
                waiting.append(item)
                continue
            self._origin = begin if self._origin is None else self._origin
            seconds = self.of(batch).seconds
            seconds[row] = seconds.get(row, 0.0) + self._place.seconds(begin, end)
            if batch in self._trace_steps:
                since = [self._place.seconds(self._origin, moment) for moment in (begin, end)]
                self.trace.append(TraceEvent(row, self._place.where(row), batch, since[0], since[1]))
        self._marks.extendleft(reversed(waiting))
        for batch in sorted(self._open):
            # A batch that was drawn and never handed out is no step.
            if batch < before and DENSE in (figures := self._open.pop(batch)).seconds:
                self.done.append(figures)

    def exchanged(
        self, batch: int, module: Any, arrived: list[KeyedJaggedTensor], output: Any, world_size: int
    ) -> None:
        """Count the bytes of one module's lookup for a batch."""
        if batch < 0:
            return
        ids = sum(
            tensor.numel() * tensor.element_size()
            for kjt in arrived
            for tensor in (kjt.values(), kjt.lengths(), kjt.weights_or_none())
            if tensor is not None
        )
        rows = _bytes_of_rows(module, output, world_size)
        counts = self.of(batch).num_bytes
        counts[INPUT_DIST] = counts.get(INPUT_DIST, 0) + ids
        counts[LOOKUP] = counts.get(LOOKUP, 0) + rows

    def updated(self, batch: int, module: Any, output: Any, world_size: int) -> None:
        """Count the bytes of one module's gradient for a batch."""
        counts = self.of(batch).num_bytes
        counts[SPARSE_BACKWARD] = counts.get(SPARSE_BACKWARD, 0) + _bytes_of_rows(module, output, world_size)

    def count_rows(self, batch: int, name: str, module: Any, arrived: list[KeyedJaggedTensor]) -> None:
        """Count the rows that a batch shares with the one before, on every so many batches."""
        if batch < 0 or not self._every or batch % self._every > 1:
            return
        tables = {feature: table for table, features in features_by_table(module).items() for feature in features}
        ids: dict[str, list[torch.Tensor]] = {}
        for part, kjt in enumerate(arrived):
            for feature, jagged in kjt.to_dict().items():
                ids.setdefault(f"{part}/{tables.get(feature, feature)}", []).append(jagged.values())
        named = {table: torch.cat(values).unique() for table, values in ids.items()}
        last, before = self._named.get(name, (None, {}))
        self._named[name] = (batch, named)
        if last == batch - 1:
            figures = self.of(batch)
            shared = sum(int(torch.isin(rows, before[table]).sum()) for table, rows in named.items())
            figures.num_rows = (figures.num_rows or 0) + sum(len(rows) for rows in named.values())
            figures.num_shared_rows = (figures.num_shared_rows or 0) + shared


def summary(steps: list[StepFigures]) -> dict[str, Any]:
    """Figures of many steps: means a step, and shares over all of them."""
    if not steps:
        return {"num_steps": 0}
    rows = sorted({row for step in steps for row in step.seconds})
    chain_s = sum(step.chain_s for step in steps)
    wait_s = sum(step.seconds.get(WAIT, 0.0) for step in steps)
    counted = [(step.num_shared_rows or 0, step.num_rows) for step in steps if step.num_rows]
    return {
        "num_steps": len(steps),
        "seconds_a_step": {row: sum(step.seconds.get(row, 0.0) for step in steps) / len(steps) for row in rows},
        "hidden_fraction": max(0.0, 1 - wait_s / chain_s) if chain_s else 1.0,
        "max_staleness": max(step.staleness for step in steps),
        "bytes_a_step": {row: sum(step.num_bytes.get(row, 0) for step in steps) / len(steps) for row in CHAIN},
        "shared_rows_fraction": sum(s for s, _ in counted) / sum(n for _, n in counted) if counted else None,
    }


def _bytes_of_rows(module: Any, output: Any, world_size: int) -> int:
    if isinstance(output, dict):
        return sum(jagged.values().numel() * jagged.values().element_size() for jagged in output.values())
    plan = module.module_sharding_plan
    num_parts = {
        feature: world_size if "row_wise" in plan[table].sharding_type else 1
        for table, features in features_by_table(module).items()
        for feature in features
    }
    values = output.values()
    widths = zip(output.keys(), output.length_per_key(), strict=True)
    return sum(values.element_size() * len(values) * width * num_parts.get(name, 1) for name, width in widths)
