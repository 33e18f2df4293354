"""How a run goes: lines for the log, event files for TensorBoard, the loss curve."""

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from thaw.components import storage
from thaw.components.events import emit
from thaw.components.storage.filesystem import is_local


class Progress:
    """Averages what the ranks report of their steps, and tells it every so many steps.

    Collective: every rank must report every step.
    """

    def __init__(
        self,
        stage: str,
        output_uri: str,
        num_steps: int,
        every_steps: int,
        group: dist.ProcessGroup,
        measured: Callable[[], dict[str, float]] = dict,
        curve: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Begin.

        Args:
            stage: named in the log.
            output_uri: folder of the attempt; event files go to `tensorboard/` below it.
            num_steps: of the whole stage.
            every_steps: steps from one line to the next.
            group: all ranks, for tensors of any device.
            measured: what this rank has measured since the last line, by its name in the event files.
            curve: of the steps that were made before the job was interrupted.
        """
        self._stage, self._num_steps, self._every_steps, self._group = stage, num_steps, every_steps, group
        self._measured = measured
        self._writer = EventFiles(output_uri) if group.rank() == 0 else None
        self._sums: torch.Tensor | None = None
        self._names: list[str] = []
        self._steps_since = self._requests_since = 0
        self._last_time = time.monotonic()
        self.curve = [(step, loss) for step, loss in curve]
        """(step, mean loss of the steps since the last entry); the same on every rank."""

    def step(self, step: int, num_requests: int, loss: torch.Tensor, parts: dict[str, torch.Tensor]) -> None:
        """Report a step that was made.

        Args:
            step: number of steps made, this one included.
            num_requests: of this rank, in this step.
            loss: of this rank; the mean over ranks is that of the global batch.
            parts: terms of the loss, likewise; the same names on every rank.

        Raises:
            FloatingPointError: on every rank, if any rank's loss was no finite number since the last line.
        """
        self._names = ["loss", *parts]
        values = torch.stack([loss.detach(), *parts.values()])
        self._sums = values if self._sums is None else self._sums + values
        self._steps_since += 1
        self._requests_since += num_requests
        if step % self._every_steps == 0 or step == self._num_steps:
            self._tell(step, torch.cat([self._sums, self._sums.new_tensor([self._requests_since])]))
            self._sums, self._steps_since, self._requests_since = None, 0, 0

    def close(self) -> None:
        """Finish the event files."""
        if self._writer is not None:
            self._writer.close()

    def _tell(self, step: int, sums: torch.Tensor) -> None:
        dist.all_reduce(sums, group=self._group)
        *totals, num_requests = sums.tolist()  # waits for the device, once a line
        now = time.monotonic()
        rate = num_requests / max(now - self._last_time, 1e-9)
        self._last_time = now
        means = {
            name: total / self._steps_since / self._group.size()
            for name, total in zip(self._names, totals, strict=True)
        }
        if not math.isfinite(means["loss"]):
            raise FloatingPointError(f"the loss is {means['loss']} at step {step}: lower recipe.dense_lr or table_lr")
        self.curve.append((step, means["loss"]))
        measured = self._measured()
        if self._writer is not None:
            self._writer.add(step, {**means, "requests_per_s": rate, **measured})
            emit(
                "progress",
                stage=self._stage,
                step=step,
                num_steps=self._num_steps,
                loss=round(means["loss"], 6),
                requests_per_s=round(rate, 1),
            )


class EventFiles:
    """TensorBoard event files under an attempt; those of a remote one are written aside and uploaded in the end."""

    def __init__(self, output_uri: str) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

        self._uri = storage.join(output_uri, "tensorboard")
        filesystem, path = storage.open_filesystem(self._uri)
        self._aside = None if is_local(filesystem) else tempfile.TemporaryDirectory()
        self._folder = Path(path if self._aside is None else self._aside.name)
        self._writer = EventFileWriter(str(self._folder))

    def add(self, step: int, scalars: dict[str, float]) -> None:
        """Write the scalars of a step."""
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Finish the file, and upload it where it was written aside."""
        self._writer.close()
        if self._aside is not None:
            storage.upload_tree(self._folder, self._uri)
            self._aside.cleanup()
