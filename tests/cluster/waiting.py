"""Waiting for what another process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, timeout_s: float = 120) -> T:
    """What `look` gives, as soon as that is true.

    Raises:
        AssertionError: it was not within the time.
    """
    until = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < until, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.2)
    return found
