"""Delays on the device: kernels that only wait, on the streams of the pipeline and on the loop's own."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torchrec import KeyedTensor


@cache
def cycles_a_ms() -> int:
    """Clock cycles that `torch.cuda._sleep` takes for a millisecond of this device."""
    cycles = 10_000_000
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1000)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return max(1, int(cycles / begin.elapsed_time(end)))


def rest(device: torch.device, ms: float) -> None:
    """Let the present stream, or on the CPU the present thread, stand still."""
    if device.type != "cuda":
        time.sleep(ms / 1e3)
    elif ms:
        torch.cuda._sleep(int(ms * cycles_a_ms()))


def litter(device: torch.device) -> None:
    """Write NaN into what memory the present stream may have by now: whoever still reads it reads NaN."""
    held = [torch.full((128 << power,), float("nan"), device=device) for power in range(6) for _ in range(8)]
    del held


@contextmanager
def random_rests(
    module: Any, seed: int | None, device: torch.device, longest_ms: float = 4.0
) -> Iterator[Callable[[], None]]:
    """Let every link of the module, and every call of what is given, stand still for a random time; for None: not.

    A link rests on its own stream before its kernels: who doesn't wait for them reads what was there before. The sparse
    backward pass rests before it reads its gradients: who takes their memory too early spoils them.
    """
    if seed is None:
        yield lambda: None
        return
    rest(device, 0.0 if device.type != "cuda" else 1.0)  # measures the clock while all is quiet
    draw = random.Random(seed)
    input_dist, look_up = module.input_dist, module.compute_and_output_dist

    def pause(*_: Any) -> None:
        rest(device, draw.choice([0, 0, longest_ms / 4, longest_ms]))

    def slow_input_dist(*args: Any) -> Any:
        pause()
        return input_dist(*args)

    def slow_look_up(*args: Any) -> Any:
        from thaw.components.trainer.torchrec_internals import LazyNoWait

        pause()
        output = look_up(*args).wait()
        parts = [output] if isinstance(output, KeyedTensor) else list(output.values())
        for part in parts[:1]:
            if part.values().requires_grad:
                part.values().register_hook(pause)
        return LazyNoWait(output)

    module.input_dist, module.compute_and_output_dist = slow_input_dist, slow_look_up
    try:
        yield pause
    finally:
        del module.input_dist, module.compute_and_output_dist
