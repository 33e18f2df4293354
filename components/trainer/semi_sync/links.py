"""The links of the chain: what is done with the tables, one module and batch at a time, in the order of submission."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from thaw.components.trainer.semi_sync.inputs import Path, tensors_of
from thaw.components.trainer.semi_sync.leaves import Cut, check_output, feature_at
from thaw.components.trainer.semi_sync.measure import Figures
from thaw.components.trainer.semi_sync.places import INPUT_DIST, LOOKUP, SPARSE_BACKWARD, Mark, Outcome, Place
from thaw.components.trainer.torchrec_internals import ShardedModule

MAX_SPOILED = 10
"""Steps in a row in which a scaled loss's gradient of rows may not be finite, while the dense half's is."""
DRAIN, LEAVE = -1, -2
"""Where a rank goes after a step, if not on to the next of so many batches that it knows."""

Gradients = list[torch.Tensor | None]


@dataclass
class Site:
    """A sharded module whose forward has been replaced."""

    name: str
    module: ShardedModule
    is_trained: bool
    ahead: int
    """Batches that its lookup runs ahead of the dense half; 0: it is looked up when it is called."""
    get: Callable[[Any], KeyedJaggedTensor] | None = None
    """From a batch to its input, where the caller said so."""
    path: Path | None = None
    """Where in a batch its input is, once the first batch has shown it."""

    @property
    def is_found(self) -> bool:
        """Whether its input can be had from a batch."""
        return self.get is not None or self.path is not None


@dataclass
class Flight:
    """One module's way through one batch."""

    site: Site
    batch: int
    ids: KeyedJaggedTensor
    arrival: Mark
    """When the batch was on the device."""
    context: Any = None
    request: Any = None
    is_dealt: bool = False
    """Whether the exchange of its ids has been submitted."""
    output: Any = None
    """Of the module, with the graph that leads back to the tables."""
    made: Cut | None = None
    """The same once the dense half has it."""
    seen: int = 0
    """Updates that had been made when the rows were read."""
    outcome: Outcome[None] | None = None


@dataclass
class Ending:
    """What the end of a step hands over to the chain."""

    batch: int
    """Whose step it is; -1 where that has ended before, and the ranks only tell where they go."""
    door: int
    """Batches that this rank knows beyond it, or `DRAIN`, or `LEAVE`."""
    ready: Mark
    """When the gradients were."""
    taken: list[tuple[Flight, Gradients]] = field(default_factory=list)
    """The trained modules' flights, with the gradients of their leaves."""
    scale: torch.Tensor | None = None
    """That of the loss."""
    is_skipped: bool = False
    """Whether the scaler skipped the step."""
    spoiled: list[torch.Tensor] = field(default_factory=list)
    """Of each trained module, the columns of its leaves whose gradient isn't finite."""
    wanted: list[bool] = field(default_factory=list)
    """Of each trained module, whether the ranks agree on an update."""


class Links:
    """Owns the tables. Collective: the links of all ranks run in the same order."""

    def __init__(
        self, sites: Sequence[Site], group: dist.ProcessGroup, place: Place, figures: Figures, device: torch.device
    ) -> None:
        self._sites = [site for site in sites if site.is_trained]
        self._group, self._place, self._figures, self._device = group, place, figures, device
        self._host_reads_wait = place.host_reads_wait
        self.num_updates = self._num_spoiled = 0
        self._alarms: list[tuple[int, Site, list[tuple[str, int]], torch.Tensor, Mark]] = []

    def start(self, flight: Flight) -> None:
        """Input dist, its first half: the ranks exchange how many ids they will send."""
        with self._figures.row(INPUT_DIST, flight.batch, after=flight.arrival):
            self._place.lend(tensors_of(flight.ids), INPUT_DIST)
            flight.context = flight.site.module.create_context()
            flight.request = flight.site.module.input_dist(flight.context, flight.ids)

    def deal(self, flight: Flight) -> None:
        """Input dist, its second half: the ranks, knowing how many, exchange the ids. Nobody waits for those here."""
        with self._figures.row(INPUT_DIST, flight.batch):
            flight.request = flight.request.wait()

    def look_up(self, flight: Flight) -> None:
        """Lookup and output dist, of the ids that have arrived."""
        site, module = flight.site, flight.site.module
        with self._figures.row(INPUT_DIST, flight.batch):
            arrived, flight.request = flight.request.wait(), None
        with self._place.on(INPUT_DIST):
            self._figures.count_rows(flight.batch, site.name, module, list(arrived))
            dealt = self._place.mark()
        with (
            self._figures.row(LOOKUP, flight.batch, after=dealt),
            torch.set_grad_enabled(site.is_trained),
        ):
            # Made on the row of the ids, read on this one by the lookup and again by its backward pass.
            self._place.lend([arrived, flight.context], LOOKUP)
            flight.seen = self.num_updates
            flight.output = module.compute_and_output_dist(flight.context, arrived).wait()
            check_output(flight.output, site.name)
            self._figures.exchanged(flight.batch, module, list(arrived), flight.output, self._group.size())
        flight.context = None

    def agree(self, ending: Ending) -> None:
        """Agree on where the ranks go, and on which modules get an update."""
        if not ending.taken:
            ending.wanted = self._agree(ending, [])
            return
        with self._figures.row(SPARSE_BACKWARD, ending.batch, after=ending.ready):
            for _, gradients in ending.taken:
                self._place.lend([g for g in gradients if g is not None], SPARSE_BACKWARD)
            if ending.scale is not None:
                self._place.lend([ending.scale], SPARSE_BACKWARD)
                ending.taken = [
                    (flight, [None if g is None else g / ending.scale for g in gradients])
                    for flight, gradients in ending.taken
                ]
            ending.spoiled = [_made(flight).spoiled(gradients) for flight, gradients in ending.taken]
            ending.wanted = self._agree(ending, ending.spoiled if self._is_read_now(ending) else [])

    def update(self, ending: Ending) -> None:
        """Sparse backward and update."""
        if ending.batch < 0:
            # The loop may have written into the tables since they were drained.
            with self._place.on(LOOKUP):
                self._place.after(ending.ready)
        if any(ending.wanted):
            with self._figures.row(SPARSE_BACKWARD, ending.batch):
                for (flight, gradients), columns, is_wanted in zip(
                    ending.taken, ending.spoiled, ending.wanted, strict=True
                ):
                    if not is_wanted:
                        continue
                    if not self._is_read_now(ending):
                        gradients = self._blank_if_spoiled(flight, gradients, columns)
                    _made(flight).backward(gradients)
                    self._figures.updated(flight.batch, flight.site.module, _made(flight).output, self._group.size())
        self.num_updates += ending.batch >= 0

    def check_alarms(self) -> None:
        """Look at the gradients that were not finite, and so not used, when the host had no time to wait for them.

        Raises:
            FloatingPointError: there was one.
        """
        while self._alarms:
            batch, site, widths, columns, mark = self._alarms.pop(0)
            self._place.reach(mark)
            if columns.any():
                raise _not_finite(site.name, feature_at(widths, int(columns.argmax())), batch, "a rank")

    def _agree(self, ending: Ending, spoiled: list[torch.Tensor]) -> list[bool]:
        """Let the ranks tell what they are about to do; whether each trained module gets an update.

        Raises:
            RuntimeError: they are about to do different things.
            FloatingPointError: a gradient isn't finite, on any rank, and there is no loss scale to blame; or there is,
                and the scale isn't lowered for it.
        """
        num_sites = len(self._sites)
        has_gradient = [any(g is not None for g in gradients) for _, gradients in ending.taken] or [False] * num_sites
        bad_column = [1 + int(s.argmax()) if s.any() else 0 for s in spoiled] or [0] * num_sites
        words = [ending.door, ending.batch, ending.is_skipped, *has_gradient, *bad_column]
        with self._place.on(INPUT_DIST):  # on CUDA the tables' stream stands behind the dense backward pass
            own = torch.tensor(words, dtype=torch.int64, device=self._device)
            told = own.new_empty(self._group.size() * len(words))
            dist.all_gather_single(told, own, group=self._group)
            everyone = told.view(self._group.size(), len(words)).tolist()
        for rank, (door, batch, *_) in enumerate(everyone):
            if [door, batch] != words[:2]:
                raise RuntimeError(
                    f"the ranks part: rank {rank} {_spelled(door, batch)}, while rank {self._group.rank()} "
                    f"{_spelled(ending.door, ending.batch)}"
                )
        is_skipped, is_spoiled = any(row[2] for row in everyone), any(any(row[3 + num_sites :]) for row in everyone)
        self._num_spoiled = self._num_spoiled + 1 if is_spoiled and not is_skipped else 0
        for rank, row in enumerate(everyone):
            for (flight, _), column in zip(ending.taken, row[3 + num_sites :]):
                if column and (ending.scale is None or self._num_spoiled >= MAX_SPOILED):
                    feature = feature_at(_made(flight).widths(), column - 1)
                    raise _not_finite(flight.site.name, feature, ending.batch, f"rank {rank}")
        if is_skipped or is_spoiled:
            return [False] * num_sites
        return [any(row[3 + index] for row in everyone) for index in range(num_sites)]

    def _is_read_now(self, ending: Ending) -> bool:
        """Whether the host looks for gradients that aren't finite before they are used."""
        # A scaler has made the host wait for the device in this step already.
        return not self._host_reads_wait or ending.scale is not None

    def _blank_if_spoiled(self, flight: Flight, gradients: Gradients, columns: torch.Tensor) -> Gradients:
        """Zeros instead of gradients that aren't finite on some rank, without the host knowing yet."""
        dist.all_reduce(columns, dist.ReduceOp.MAX, group=self._group)
        is_spoiled = columns.any()
        told = columns.to("cpu", non_blocking=True)
        self._alarms.append((flight.batch, flight.site, _made(flight).widths(), told, self._place.mark()))
        return [None if g is None else g.masked_fill(is_spoiled, 0.0) for g in gradients]


def _made(flight: Flight) -> Cut:
    assert flight.made is not None
    return flight.made


def _not_finite(module: str, feature: str, batch: int, where: str) -> FloatingPointError:
    return FloatingPointError(
        f"the gradient of feature {feature!r} of {module} is not finite on {where} in batch {batch}; no table was "
        f"updated with it"
    )


def _spelled(door: int, batch: int) -> str:
    goes = {DRAIN: "drains", LEAVE: "leaves the loop"}.get(door, f"knows {door} more batches")
    return goes if batch < 0 else f"{goes} after batch {batch}"
