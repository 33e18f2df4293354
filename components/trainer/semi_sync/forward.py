"""The replaced forward of sharded modules: what it may be called with, and when."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Self
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import nn
from torchrec import KeyedJaggedTensor

from thaw.components.trainer.semi_sync.inputs import is_same, locate, spelled
from thaw.components.trainer.semi_sync.leaves import clip_norm
from thaw.components.trainer.semi_sync.links import Site
from thaw.components.trainer.semi_sync.measure import Figures
from thaw.components.trainer.semi_sync.places import ChainStreams, ChainThread, Place
from thaw.components.trainer.semi_sync.schedule import Schedule, Step
from thaw.components.trainer.semi_sync.sites import check_device, check_group, check_kernels, sharded_modules
from thaw.components.trainer.torchrec_internals import LazyNoWait, ShardedModule

_OWNERS: "WeakValueDictionary[str, PrefetchingForward]" = WeakValueDictionary()
"""Who communicates in a process group, by the group's name: two chains in one would cross."""


class PrefetchingForward:
    """Takes the place of sharded modules' forward: their rows have been looked up when the model asks for them.

    Collective: all ranks of the group must build it, and must go through the same loop.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, ShardedModule],
        optimizer: torch.optim.Optimizer | None,
        *,
        group: dist.ProcessGroup,
        staleness: Literal[0, 1] = 1,
        frozen: Collection[str] = (),
        depth: int = 1,
        synchronous: Collection[str] = (),
        inputs: Mapping[str, Callable[[Any], KeyedJaggedTensor]] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        device: torch.device | None = None,
        trace_steps: range = range(0),
        count_rows_every: int = 0,
    ) -> None:
        """Replace the forward of the sharded modules, until `close`.

        Args:
            model: whose sharded modules are found, or the modules by name. Each is called once a batch.
            optimizer: of the dense half, stepped once a batch; None where the dense half has no parameters.
            group: of the tables alone: the modules are sharded over it, and nothing else communicates in it.
            staleness: 1, or 0 for the synchronous loop, in which a module is looked up when it is called.
            frozen: names of modules that don't train: looked up without autograd, never updated, never stale.
            depth: batches that the lookups of frozen modules run ahead; 0: they are looked up when called.
            synchronous: names of modules to look up when they are called, whatever the staleness of the others.
            inputs: from a batch to a module's input, by name, where that isn't an object that the batch holds.
            scaler: the loop's loss scaler: leaves are unscaled, and a step that it skips updates no table. With a
                scaler that isn't given here, the tables' gradients stay scaled.
            device: of the tables; the CPU where none is given.
            trace_steps: batches whose events are kept in `figures.trace`.
            count_rows_every: batches between two counts of the rows that a batch shares with the one before; 0: none.

        Raises:
            ValueError: a name that no module has, a module of another kind, a group that is shared, tables on another
                device.
        """
        self._is_closed = False
        inputs = inputs or {}
        modules = sharded_modules(model, {"frozen": frozen, "synchronous": synchronous, "inputs": inputs})
        device = device or torch.device("cpu")
        check_group(model, modules, group)
        check_device(modules, device)
        check_kernels({name: module for name, module in modules.items() if name not in frozen})
        owner = _OWNERS.get(group.group_name)
        if owner is not None and not owner._is_closed:
            raise ValueError(
                "another PrefetchingForward communicates in this group; close() it, or shard these tables over another"
            )
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        if staleness not in (0, 1) or depth < 0:
            raise ValueError(f"staleness is 0 or 1 and depth at least 0, not {staleness} and {depth}")
        self._sites = [
            Site(
                name,
                module,
                is_trained=name not in frozen,
                ahead=0 if name in synchronous else depth if name in frozen else staleness,
                get=inputs.get(name),
            )
            for name, module in modules.items()
        ]
        place: Place = ChainStreams(device) if device.type == "cuda" else ChainThread()
        self.figures = Figures(place, trace_steps, count_rows_every)
        """Times, staleness and bytes of every step."""
        self.schedule = Schedule(self._sites, group, place, self.figures, optimizer, scaler, device)
        _OWNERS[group.group_name] = self
        for site in self._sites:
            site.module.forward = partial(self._called, site)

    def drain(self) -> None:
        """Wait until every update has been made, and forget rows that were looked up before the last one.

        To be called between two steps, before tables are read or written: for a checkpoint, say. The next batch then
        lacks no update, just as a resumed run's first batch. Before the model's forward it is a batch's own rows that
        are looked up anew. Collective, and so nothing for a `finally`: an exception may be on this rank alone.
        """
        self.schedule.drain()

    def leaves(self) -> list[torch.Tensor]:
        """The rows that trained modules gave to this batch, with their gradients once a backward pass has run."""
        return [leaf for cut in self.schedule.cuts() for leaf in cut.leaves]

    def in_order(self, change: Callable[[], object]) -> None:
        """Have something done to the tables at a definite place, the same on every rank, without a drain.

        For what the links read and the main thread must not change under them: `in_order(fused_optimizer.step)`, after
        a scheduler has set another rate in its groups. Called within the step of batch B it comes behind the lookup of
        B+1, before the update of B. FBGEMM's CPU kernels take the rate at the lookup: it holds for the gradients of
        B+2 on.

        Args:
            change: on CPU the chain's thread calls it, so it must not communicate.
        """
        self.schedule.in_order(change)

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, group: dist.ProcessGroup
    ) -> torch.Tensor:
        """Clip the gradients of the dense parameters and of the leaves by their joint norm, which is returned.

        With a loss scaler, after its `unscale_(optimizer)`. Collective over `group`, which isn't the tables' own.
        """
        return clip_norm(parameters, self.leaves(), max_norm, group, self.schedule.scale)

    def close(self) -> None:
        """Finish what is under way, and give the modules their own forward back. Collective; again, it does nothing.

        Not after an exception, which the other ranks may know nothing of, and so not in a `finally`; `with` sees to it.
        """
        if self._is_closed:
            return
        try:
            self.schedule.finish()
        finally:
            self._restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.close()
        else:
            self._restore()

    def _restore(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.schedule.stop()
        for site in self._sites:
            del site.module.forward

    def _called(self, site: Site, *args: Any, **kwargs: Any) -> Any:
        if len(args) + len(kwargs) != 1:
            raise TypeError(f"{site.name} was called with {len(args) + len(kwargs)} inputs; a lookup has one")
        ids = (*args, *kwargs.values())[0]
        step = self.schedule.step
        if self._is_evaluation(site, ids):
            return LazyNoWait(self.schedule.evaluate(site, ids).output)
        if step is None:
            raise RuntimeError(
                f"{site.name} was called to train outside of a loop over a LookaheadLoader; evaluate under "
                f"torch.no_grad(), or close() the PrefetchingForward first"
            )
        if step.has_ended:
            raise RuntimeError(f"{site.name} was called for batch {step.number}, whose step a drain has ended")
        if site.name in step.called:
            raise RuntimeError(f"{site.name} was called twice for batch {step.number}; a batch makes one update")
        flight = step.flights.get(site.name)
        if flight is None:
            self._find(site, step, ids)
        elif site.get is None and flight.ids is not ids:
            raise RuntimeError(
                f"{site.name} was called for batch {step.number} with another input than {spelled(site.path or ())}, "
                f"where the first batch had it; give `inputs` a function from a batch to it, or name the module in "
                f"`synchronous`"
            )
        return LazyNoWait(self.schedule.call(site, ids).output)

    def _is_evaluation(self, site: Site, ids: KeyedJaggedTensor) -> bool:
        if site.is_trained:
            return not (torch.is_grad_enabled() and site.module.training)
        # Whoever calls a frozen module may have switched autograd off for its sake.
        step = self.schedule.step
        if step is None or step.has_ended:
            return True
        flight = step.flights.get(site.name)
        if site.name in step.called:
            return True
        if site.get is not None:
            return not is_same(site.get(step.batch) if flight is None else flight.ids, ids)
        return flight is not None and flight.ids is not ids

    def _find(self, site: Site, step: Step, ids: KeyedJaggedTensor) -> None:
        if not site.ahead or site.is_found:
            return
        site.path = locate(step.batch, ids)
        if site.path is None:
            raise RuntimeError(
                f"the input of {site.name} is no object that the batch (a {type(step.batch).__name__}) holds, so it "
                f"can't be looked up ahead; give `inputs` a function from a batch to it, or name the module in "
                f"`synchronous`"
            )
