"""What was measured in one setting, and the numbers that are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass
class Block:
    """Some steps of one mode on end, on both ranks."""

    mode: str
    repetition: int
    step_ms: list[list[float]]
    """By rank."""
    cpu_ms: list[float]
    """Of a rank's process, a step."""
    sent_bytes: list[float]
    """By a rank's network device, a step."""
    rows_ms: dict[str, float]
    """Of rank 0, by row of the pipeline's timeline: medians."""
    other_cores: float
    """Cores that were busy with anything but the two ranks and the relay."""


@dataclass
class Figures:
    """All blocks of a setting."""

    blocks: list[Block] = field(default_factory=list)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    """By mode, of the larger rank: resident bytes before the model was built, and at the peak."""
    gradient_bytes: int = 0
    """Sent by a rank in one step, by the shapes of the outputs."""
    notes: dict[str, Any] = field(default_factory=dict)

    def modes(self) -> list[str]:
        """Those that were measured."""
        return list(dict.fromkeys(block.mode for block in self.blocks))

    def step_ms(self, mode: str) -> float:
        """The median step: of each repetition's steps on both ranks, then over the repetitions.

        A pipeline may take short and long steps in turns, so a repetition counts with its mean.
        """
        return median(sum(map(sum, b.step_ms)) / sum(map(len, b.step_ms)) for b in self._of(mode))

    def median_single_step_ms(self, mode: str) -> float:
        """Over all steps of all repetitions and both ranks."""
        return median(ms for block in self._of(mode) for rank in block.step_ms for ms in rank)

    def cpu_ms(self, mode: str) -> float:
        """CPU time of a rank in a step."""
        return median(ms for block in self._of(mode) for ms in block.cpu_ms)

    def sent_bytes(self, mode: str) -> float:
        """What a rank puts on the wire in a step."""
        return median(sum(block.sent_bytes) / len(block.sent_bytes) for block in self._of(mode))

    def row_ms(self, mode: str, row: str) -> float:
        """Time of a row of the pipeline's timeline in a step."""
        return median(block.rows_ms[row] for block in self._of(mode))

    def has_rows(self, mode: str) -> bool:
        """Whether the mode tells the time of its rows."""
        return all(block.rows_ms for block in self._of(mode))

    def ratio(self, mode: str, other: str) -> float:
        """Of their steps."""
        return self.step_ms(mode) / self.step_ms(other)

    def hidden(self, mode: str, limit: str = "no network (limit)") -> float:
        """Share of what the network costs the plain loop that this mode's step doesn't have."""
        plain, least = self.step_ms("plain loop"), self.step_ms(limit)
        return 1 - (self.step_ms(mode) - least) / (plain - least)

    def gradient_share(self) -> float:
        """Bytes that a frozen epoch sends beyond co-training less its gradients, as a share of the gradients."""
        saved = self.sent_bytes("ours, staleness 1") - self.sent_bytes("ours, frozen epoch")
        return max(0.0, 1 - saved / self.gradient_bytes)

    def peak_bytes(self, mode: str) -> int:
        """Largest resident memory of a rank."""
        return self.memory[mode]["peak"]

    def other_cores(self) -> float:
        """Cores that others kept busy, at the median."""
        return median(block.other_cores for block in self.blocks)

    def _of(self, mode: str) -> list[Block]:
        return [block for block in self.blocks if block.mode == mode]
