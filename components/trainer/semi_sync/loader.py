"""The loop's side: batches one by one, while those behind are known."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Generic, TypeVar

import torch

from thaw.components.trainer.semi_sync.forward import PrefetchingForward

Batch = TypeVar("Batch")


class LookaheadLoader(Generic[Batch]):
    """Gives the batches of a loader one by one, while those behind are known: the loop over it is the user's own.

        for batch in LookaheadLoader(loader, forward):
            loss = model(batch)
            loss.backward(); optimizer.step(); optimizer.zero_grad()

    Collective: all ranks must draw equally many batches. A second loop over it is a second epoch.
    """

    def __init__(
        self, loader: Iterable[Batch], forward: PrefetchingForward, device: torch.device | None = None
    ) -> None:
        """Wrap a loader.

        Args:
            loader: gives batches on the forward's device, or on the host where `device` is given.
            forward: of the modules that the loop trains.
            device: to move each batch to, by its `to`. On CUDA the copy, like all that the loader does on the device,
                has a stream of its own.
        """
        self._loader, self._forward, self._device = loader, forward, device
        self._num_batches = 0

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        schedule = self._forward.schedule
        epoch = schedule.begin()
        source = iter(self._loader)
        is_spent = source is self._loader and self._num_batches > 0
        try:
            while (step := schedule.advance(epoch, partial(self._draw, source))) is not None:
                self._num_batches += 1
                is_spent = False
                yield step.batch
            if is_spent:
                raise RuntimeError(
                    f"the loader, a {type(source).__name__}, is an iterator that has given its batches in an earlier "
                    f"epoch; give one that begins anew"
                )
        except GeneratorExit:
            schedule.leave(epoch)
            raise

    def _draw(self, source: Iterator[Batch]) -> Batch:
        batch = next(source)
        if self._device is not None:
            return batch.to(self._device, non_blocking=True)  # type: ignore[attr-defined]
        return batch
