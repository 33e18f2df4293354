"""The semi-synchronous pipeline: everything sparse of a batch's neighbours runs beside its dense forward and backward.

    row                          thread   stream   the batches that it works on, from left to right in time
                                 (CPU)    (CUDA)
    copy                         main     copy     0 1 2      3         4         5         6
    input dist                   chain    ids      0 1 2       3         4         5         6
    lookup and output dist       chain    tables   0 1           2         3         4         5
    dense forward and backward   main     main        [== 0 ==] [== 1 ==] [== 2 ==] [== 3 ==] [== 4 ==]
    sparse backward and update   chain    tables                0         1         2         3         4

Staleness: batch B reads tables updated through batch B-2, never older and never torn, since one queue of links owns the
tables, in this order: sparse backward and update of B-1, lookup and output dist of B+1. The first batch of an epoch, or
after a drain, lacks no update.

These links are submitted when the loop asks for batch B (`Schedule.advance`), and run beside all that the loop then
does. Only links communicate in the tables' process group, and every rank submits the same ones in the same order. On
CPU one thread runs them. On CUDA the main thread issues them right there, on streams (places.py).

An input dist has two halves, a step apart: the sizes, then the ids. Both stand before the sparse backward of B-1: they
read no table, and a communicator takes its collectives one after another. Behind the gradients they would have to wait
for the dense backward pass of B-1, and so would the host, which must know both before it can go on.

Where a step ends, the ranks first tell one another where they go. One that is out of batches, has left the loop, or has
gradients that are not finite is named on all of them. A module's backward pass runs if any rank has a gradient for it,
with zeros on the others.

Frozen modules have no sparse backward, and no staleness either: their lookups may run further ahead.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torchrec import KeyedJaggedTensor

from thaw.components.trainer.semi_sync.dense_step import DenseStep
from thaw.components.trainer.semi_sync.inputs import follow, tensors_of
from thaw.components.trainer.semi_sync.leaves import Cut, Gate, cut
from thaw.components.trainer.semi_sync.links import DRAIN, LEAVE, Ending, Flight, Links, Site
from thaw.components.trainer.semi_sync.measure import Figures
from thaw.components.trainer.semi_sync.places import COPY, DENSE, WAIT, Mark, Place


@dataclass
class Step:
    """A batch from its draw to the end of its step."""

    number: int
    """Batches of this pipeline before it."""
    batch: Any
    arrival: Mark
    """When it was on the device."""
    flights: dict[str, Flight] = field(default_factory=dict)
    """Of each module, as far as they have begun."""
    called: set[str] = field(default_factory=set)
    """Modules that the model has called."""
    evaluated: set[str] = field(default_factory=set)
    """Modules that have been called for something else."""
    begin: Mark | None = None
    """When it was handed out."""
    scale: torch.Tensor | None = None
    """Of its loss."""
    has_gradient: bool = False
    has_ended: bool = False


class Schedule:
    """When each link of each batch is submitted, and what a step must be like. All of it runs on the main thread."""

    def __init__(
        self,
        sites: Sequence[Site],
        group: dist.ProcessGroup,
        place: Place,
        figures: Figures,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        device: torch.device,
    ) -> None:
        """Begin without a batch.

        Args:
            sites: the sharded modules, in the same order on every rank.
            group: of the tables alone.
            place: where the links run.
            figures: to fill.
            optimizer: of the dense half, if it has parameters.
            scaler: of the loss, if it is scaled.
            device: of the tables.
        """
        self._sites, self._place, self._figures = sites, place, figures
        self._dense = DenseStep(optimizer, scaler, device)
        self._links = Links(sites, group, place, figures, device)
        self._reach = 1 + max(site.ahead for site in sites)
        self.step: Step | None = None
        """The one in the dense row."""
        self._window: deque[Step] = deque()
        """Batches behind it that have been drawn."""
        self._epoch = self._num_drawn = self._num_ended = 0
        self._is_exhausted = self._is_stopped = False
        self._left: Ending | None = None
        """What the loop owed the tables when it was left, if the ranks haven't spoken of it yet."""

    def begin(self) -> int:
        """Begin an epoch, and give its number. What an earlier one left under way is finished first."""
        self._check_open()
        self.finish()
        before = self._place.mark()
        with self._place.on(COPY):
            self._place.after(before)  # the loader may give what the loop has put on the device by now
        self._is_exhausted = False
        self._epoch += 1
        return self._epoch

    def advance(self, epoch: int, draw: Callable[[], Any]) -> Step | None:
        """End the step of batch B-1, and begin that of B: submit what runs beside it, wait for its rows.

        Args:
            epoch: number of the epoch.
            draw: gives one more batch, or raises StopIteration.

        Returns:
            The step of B; None where there is no further batch, and all updates have been made.
        """
        self._check_open()
        if epoch != self._epoch:
            raise RuntimeError("another loop over a LookaheadLoader has begun since; only the last one goes on")
        if self.step is not None:
            self._check_rules(self.step)
        self._links.check_alarms()
        self._draw(draw)
        ending = self._end_step(door=len(self._window))
        self._place.submit(partial(self._links.agree, ending))
        self.step = self._window.popleft() if self._window else None
        self._send_ids()
        self._place.submit(partial(self._links.update, ending))
        if self.step is None:
            self._place.settle()
            self._links.check_alarms()
            self._figures.finish(before=self._num_drawn)
        else:
            self._look_ahead()
            self._hand_out(self.step)
        return self.step

    def leave(self, epoch: int) -> None:
        """Leave the loop: end its last step, drop the batches that were only drawn.

        It doesn't wait, since it may be an exception on this rank alone that ends the loop; `drain` waits. Where the
        host itself would have to wait for the other ranks, they hear of it only then.
        """
        step = self.step
        if epoch != self._epoch:
            return
        # Before the forward is through with its lookups, other ranks may be in the middle of one.
        if step is not None and all(site.name in step.flights for site in self._sites):
            self._left = self._end_step(LEAVE)
            if not self._place.host_reads_wait:
                self._catch_up()
        self.step = None
        self._window.clear()

    def drain(self) -> None:
        """Wait until every update has been made, and forget rows that were looked up before the last one."""
        self._catch_up()
        present = self.step
        if present is not None and present.called:
            self._check_rules(present)
            self._close(self._end_step(DRAIN))
        elif present is not None:
            self._close(Ending(-1, DRAIN, self._place.mark()))
        self._place.settle()
        self._links.check_alarms()
        if present is not None and not present.called:
            present.flights.clear()
            self._figures.of(present.number).staleness = 0
        if present is None or present.has_ended or not present.called:
            for step in self._window:
                step.flights.clear()

    def finish(self) -> None:
        """Leave the loop, and wait until every update has been made."""
        self.leave(self._epoch)
        self._catch_up()
        self._place.settle()
        self._links.check_alarms()
        self._figures.finish(before=self._num_drawn)

    def in_order(self, change: Callable[[], object]) -> None:
        """Have something called between two links: behind those submitted by now, before all later ones."""
        self._check_open()
        self._place.submit(change)

    def stop(self) -> None:
        """Take no more batches."""
        self._is_stopped = True
        self._place.stop()
        self._dense.stop()

    def call(self, site: Site, ids: KeyedJaggedTensor) -> Cut:
        """The model calls a module in the present step."""
        assert self.step is not None
        flight = self.step.flights.get(site.name) or self._depart(site, self.step, ids)
        self._look_up(flight)
        self.step.called.add(site.name)
        made = self._receive(flight)
        if len(self.step.called) == len(self._sites):
            self._send_ids()  # the first batch has shown where the inputs of the others are
            self._look_ahead()
        return made

    def evaluate(self, site: Site, ids: KeyedJaggedTensor) -> Cut:
        """The model calls a module between steps: a lookup behind all updates."""
        step = self.step
        if step is not None:
            step.evaluated.add(site.name)
        if step is not None and step.called and not step.has_ended and not self._dense.is_over(step.scale):
            raise RuntimeError(
                f"{site.name} was called again, or to evaluate, within the step of batch {step.number}; a batch calls "
                f"each module once, and evaluations come before its forward or after the optimizer's step"
            )
        self.drain()
        flight = Flight(Site(site.name, site.module, is_trained=False, ahead=0), -1, ids, self._place.mark())
        self._place.submit(partial(self._links.start, flight))
        self._look_up(flight)
        return self._receive(flight)

    @property
    def scale(self) -> torch.Tensor | None:
        """Of the present step's loss."""
        return None if self.step is None else self.step.scale

    def cuts(self) -> list[Cut]:
        """Those of the present step."""
        return [] if self.step is None else list(self._cuts(self.step).values())

    def _draw(self, draw: Callable[[], Any]) -> None:
        """copy: B+2."""
        while len(self._window) <= self._reach and not self._is_exhausted:
            with self._figures.row(COPY, self._num_drawn):
                try:
                    batch = draw()
                except StopIteration:
                    self._is_exhausted = True
                    break
                self._window.append(Step(self._num_drawn, batch, self._place.mark()))
            self._num_drawn += 1

    def _close(self, ending: Ending) -> None:
        """Let the ranks tell where they go, then make the update."""
        self._place.submit(partial(self._links.agree, ending))
        self._place.submit(partial(self._links.update, ending))

    def _catch_up(self) -> None:
        """Close what was left open when the loop was left."""
        if self._left is not None:
            ending, self._left = self._left, None
            self._close(ending)

    def _end_step(self, door: int) -> Ending:
        """End the step of B-1: what the ranks are told, and what it owes the tables; nothing if it is over already."""
        step, ready = self.step, self._place.mark()
        ending = Ending(-1, door, ready)
        if step is not None and not step.has_ended:
            step.has_ended = True
            self._num_ended += 1
            if step.begin is not None:
                self._figures.add(DENSE, step.number, step.begin, ready)
            ending.batch, ending.scale, ending.is_skipped = step.number, step.scale, self._dense.is_skipped(step.scale)
            # A step that is left between its backward pass and the optimizer's step moves neither half.
            is_whole = door != LEAVE or not step.has_gradient or self._dense.is_over(step.scale)
            for name, made in self._cuts(step).items():
                gradients = made.take()
                ending.taken.append((step.flights[name], gradients if is_whole else [None] * len(gradients)))
        return ending

    def _send_ids(self) -> None:
        """input dist: second half of B+1, first of B+2. Later batches too where frozen modules run further ahead."""
        for site, step in self._within_reach():
            self._deal(step.flights.get(site.name) or self._depart(site, step))
        for site, step in self._within_reach(further=1):
            if site.name not in step.flights:
                self._depart(site, step)

    def _look_ahead(self) -> None:
        """lookup and output dist: B+1. Later batches too where frozen modules run further ahead."""
        for site, step in self._within_reach():
            self._look_up(step.flights[site.name])

    def _within_reach(self, further: int = 0) -> list[tuple[Site, Step]]:
        """The modules that are looked up ahead, with each batch that it is time for, oldest first."""
        steps = [] if self.step is None else [self.step, *self._window]
        sites = [site for site in self._sites if site.is_found and site.ahead]
        return [(site, step) for n, step in enumerate(steps) for site in sites if n <= site.ahead + further]

    def _depart(self, site: Site, step: Step, ids: KeyedJaggedTensor | None = None) -> Flight:
        arrival = step.arrival if ids is None else self._place.mark()
        if ids is None:
            ids = site.get(step.batch) if site.get is not None else follow(step.batch, site.path or ())
        flight = step.flights[site.name] = Flight(site, step.number, ids, arrival)
        self._place.submit(partial(self._links.start, flight))
        return flight

    def _deal(self, flight: Flight) -> None:
        if not flight.is_dealt:
            flight.is_dealt = True
            self._place.submit(partial(self._links.deal, flight))

    def _look_up(self, flight: Flight) -> None:
        self._deal(flight)
        if flight.outcome is None:
            flight.outcome = self._place.submit(partial(self._links.look_up, flight))

    def _hand_out(self, step: Step) -> None:
        """dense forward and backward: B."""
        self._place.after(step.arrival)
        self._place.lend(tensors_of(step.batch), DENSE)
        for flight in step.flights.values():
            if flight.outcome is not None:
                self._receive(flight)
        step.scale = self._dense.begin()
        step.begin = self._place.mark()
        self._figures.finish(before=step.number - 1)

    def _receive(self, flight: Flight) -> Cut:
        assert flight.outcome is not None
        with self._figures.row(WAIT, flight.batch):
            flight.outcome.result()
        if flight.made is None:
            # Here and not in the chain: on CUDA a leaf's gradient is accumulated on the stream that the leaf was made
            # on, and every backward pass ends by waiting for that stream.
            flight.made = cut(flight.output, flight.site.is_trained, self._reached)
            flight.output = None
            self._place.lend(flight.made.tensors(), DENSE)
            if flight.site.is_trained:
                figures = self._figures.of(flight.batch)
                figures.staleness = max(figures.staleness, self._num_ended - flight.seen)
        return flight.made

    def _cuts(self, step: Step) -> dict[str, Cut]:
        flights = {site.name: step.flights.get(site.name) for site in self._sites if site.is_trained}
        return {name: flight.made for name, flight in flights.items() if flight is not None and flight.made is not None}

    def _check_open(self) -> None:
        if self._is_stopped:
            raise RuntimeError("this PrefetchingForward is closed; build another one")

    def _check_rules(self, step: Step) -> None:
        if step.has_ended:
            return
        missing = [site.name for site in self._sites if site.name not in step.called]
        if missing:
            why = ""
            if step.evaluated & set(missing):
                why = (
                    ": a call under no_grad or in eval() is an evaluation; a module that doesn't train goes in `frozen`"
                )
            raise RuntimeError(
                f"{', '.join(missing)} was not called for batch {step.number}; every batch needs all rows{why}"
            )
        if step.has_gradient and not self._dense.is_over(step.scale):
            raise RuntimeError(
                f"batch {step.number} had a backward pass and no optimizer step: gradients can't be accumulated over "
                f"batches, as one batch's update of the tables is made while the next one runs. Give larger batches, "
                f"or optimizer=None if the dense half has no parameters"
            )

    def _reached(self, gate: Gate) -> None:
        """A backward pass reached a leaf."""
        if gate.is_shut:
            raise RuntimeError("a backward pass reached rows whose gradient the tables have been updated with already")
        if self.step is not None:
            self.step.has_gradient = True
