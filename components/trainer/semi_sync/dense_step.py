"""Whether the dense half has made its step for a batch: by its optimizer, and by the scaler of its loss."""

import sys
from types import FrameType

import torch


class DenseStep:
    """Watches the optimizer of the dense half from one hand-over to the next."""

    def __init__(
        self, optimizer: torch.optim.Optimizer | None, scaler: torch.amp.GradScaler | None, device: torch.device
    ) -> None:
        """Begin.

        Args:
            optimizer: of the dense half, if it has parameters.
            scaler: of the loss, if it is scaled.
            device: of the loss.
        """
        self._optimizer, self._scaler, self._device = optimizer, scaler, device
        self._has_stepped = False
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(self._stepped)

    def begin(self) -> torch.Tensor | None:
        """Begin a batch's step, and give the scale of its loss, if it has one."""
        self._has_stepped = False
        return None if self._scaler is None else self._scaler.scale(torch.ones((), device=self._device))

    def is_over(self, scale: torch.Tensor | None) -> bool:
        """Whether the step has been made, or skipped; without an optimizer the forward is all that can be told."""
        return self._optimizer is None or self._has_stepped or self.is_skipped(scale)

    def is_skipped(self, scale: torch.Tensor | None) -> bool:
        """Whether the scaler found infinities, and so skipped the step.

        Args:
            scale: which the step began with.
        """
        if self._scaler is None or scale is None:
            return False
        # An optimizer that takes the scale in is called in any case; others are not called where there are infinities.
        if self._has_stepped and not getattr(self._optimizer, "_step_supports_amp_scaling", False):
            return False
        return bool(self._scaler.scale(torch.ones((), device=self._device)) < scale)

    def stop(self) -> None:
        """Watch no more."""
        if self._hook is not None:
            self._hook.remove()

    def _stepped(self, *_: object) -> None:
        self._has_stepped = True
        if self._scaler is None and _is_called_by_scaler(sys._getframe()):
            raise RuntimeError(
                "a GradScaler steps the optimizer, and the rows' gradients would stay scaled; give it as `scaler`"
            )


def _is_called_by_scaler(frame: FrameType | None) -> bool:
    """Whether a loss scaler that scales is among the next callers."""
    for _ in range(8):
        if frame is None:
            return False
        caller = frame.f_locals.get("self")
        if isinstance(caller, torch.amp.GradScaler):
            return caller.is_enabled()
        frame = frame.f_back
    return False
