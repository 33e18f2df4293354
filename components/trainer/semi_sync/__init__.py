"""Semi-synchronous prefetching: a loader that looks ahead, and a forward that has the rows before the model asks.

schedule.py tells what runs when.
"""

from thaw.components.trainer.semi_sync.forward import PrefetchingForward
from thaw.components.trainer.semi_sync.loader import LookaheadLoader

__all__ = ["LookaheadLoader", "PrefetchingForward"]
