"""What is measured, and what it should come to. Data alone: torch is not needed to read it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from figures import Figures
from link import Rate

PLAIN = "plain loop"
SPARSE_DIST = "TorchRec SparseDist"
SEMI_SYNC = "TorchRec SemiSync, patched"
OURS = "ours, staleness 1"
SYNCHRONOUS = "ours, staleness 0"
FROZEN = "ours, frozen epoch"
PLAIN_FROZEN = "plain loop, frozen epoch"
LIMIT = "no network (limit)"
DENSE_LIMIT = "no sparse network"

MODES = {
    PLAIN: "forward, backward, optimizer step; TorchRec's sharded module as it is",
    SPARSE_DIST: "TrainPipelineSparseDist: the input dist of the next batch beside this one",
    SEMI_SYNC: "TrainPipelineSemiSync(start_batch=0), patched by this benchmark: as it is, it doesn't run on CPU",
    OURS: "PrefetchingForward(staleness=1) under the plain loop",
    SYNCHRONOUS: "PrefetchingForward(staleness=0) under the plain loop",
    FROZEN: "PrefetchingForward(frozen=all) under the plain loop",
    PLAIN_FROZEN: "the plain loop, its lookups under no_grad",
    LIMIT: "each rank alone, all tables its own: as many lookups, the same dense half, no collective",
    DENSE_LIMIT: "the same, but for the dense half's all-reduce, which is on the link",
}


@dataclass(frozen=True)
class Setting:
    """One world of two ranks, in which some modes take turns."""

    name: str
    modes: tuple[str, ...]
    rate: Rate | None
    """Of the link; None: loopback."""
    sleep_ms: float = 0.0
    """Time that the dense half sleeps, a third of it forward: a stand-in for an accelerator, which takes no CPU."""
    hidden: int = 32
    """Width of the dense half's layers. Small where it sleeps, so that it takes next to no CPU."""
    sharding: str = "table_wise"
    num_tables: int = 8
    num_rows: int = 200_000
    dim: int = 64
    ids_a_bag: int = 10
    batch_size: int = 2048
    """Of a rank."""

    @property
    def work(self) -> str:
        """The dense half in words."""
        mlp = f"MLP of width {self.hidden}"
        return f"sleeps {self.sleep_ms:g} ms, {mlp}" if self.sleep_ms else f"real {mlp}"


GIGABIT = Rate(1000, 0.5)
ALL = (PLAIN, SPARSE_DIST, SEMI_SYNC, OURS, LIMIT, DENSE_LIMIT)

LONG = Setting("120 ms", (*ALL, SYNCHRONOUS), GIGABIT, sleep_ms=120)
SHORT = Setting("60 ms", (*ALL, FROZEN, PLAIN_FROZEN), GIGABIT, sleep_ms=60)
MLP = Setting("MLP", (*ALL, FROZEN, PLAIN_FROZEN), GIGABIT, hidden=256)
ROW_WISE = Setting(
    "row-wise", (PLAIN, SEMI_SYNC, OURS, LIMIT, FROZEN, PLAIN_FROZEN), GIGABIT, sleep_ms=60, sharding="row_wise"
)
SLOW_LINK = Setting("300 Mbit", (PLAIN, SEMI_SYNC, OURS, LIMIT), Rate(300, 0.5), sleep_ms=60)
LOOPBACK = Setting("loopback", (PLAIN, SEMI_SYNC, OURS), None, sleep_ms=60)
LOOPBACK_MLP = replace(LOOPBACK, name="loopback MLP", sleep_ms=0, hidden=MLP.hidden)
SETTINGS = (LONG, SHORT, MLP, ROW_WISE, SLOW_LINK, LOOPBACK, LOOPBACK_MLP)

MEMORY_MODES = (PLAIN, SEMI_SYNC, OURS)
"""Each is measured in a world of its own."""


@dataclass(frozen=True)
class Target:
    """What a figure should come to."""

    claim: str
    setting: str
    figure: Callable[[Figures], float]
    bound: float
    is_floor: bool
    """Whether the figure should be at least the bound; at most it, otherwise."""

    def is_reached(self, value: float) -> bool:
        """Whether this will do."""
        return value >= self.bound if self.is_floor else value <= self.bound


def _longer_half(figures: Figures) -> float:
    """Our step over the longer one of what runs side by side in it: the dense half, and the chain."""
    return figures.step_ms(OURS) / max(figures.row_ms(OURS, "dense"), figures.row_ms(OURS, "chain"))


TARGETS = (
    Target("hidden fraction of sparse communication", "120 ms", lambda f: f.hidden(OURS), 0.95, True),
    Target("plain / ours", "120 ms", lambda f: f.ratio(PLAIN, OURS), 1.4, True),
    Target("TorchRec SemiSync / ours", "120 ms", lambda f: f.ratio(SEMI_SYNC, OURS), 1.18, True),
    Target("plain / ours", "60 ms", lambda f: f.ratio(PLAIN, OURS), 1.5, True),
    Target("plain / ours", "MLP", lambda f: f.ratio(PLAIN, OURS), 1.2, True),
    Target("ours / max(dense, chain)", "row-wise", _longer_half, 1.1, False),
    Target("ours / max(dense, chain)", "300 Mbit", _longer_half, 1.1, False),
    Target("ours / plain", "loopback", lambda f: f.ratio(OURS, PLAIN), 1.03, False),
    Target("ours / plain", "loopback MLP", lambda f: f.ratio(OURS, PLAIN), 1.03, False),
    Target("frozen / co-training, ours", "60 ms", lambda f: f.ratio(FROZEN, OURS), 0.85, False),
    Target("frozen / co-training, ours", "MLP", lambda f: f.ratio(FROZEN, OURS), 0.85, False),
    Target("frozen / co-training, ours", "row-wise", lambda f: f.ratio(FROZEN, OURS), 0.85, False),
    Target("gradient bytes of a frozen epoch / of co-training", "60 ms", lambda f: f.gradient_share(), 0.02, False),
    Target("peak memory, ours / plain", "memory", lambda f: f.peak_bytes(OURS) / f.peak_bytes(PLAIN), 1.15, False),
)
