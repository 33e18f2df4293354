"""What a run shows while it runs: bars with the time left on a terminal, plain lines elsewhere."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from thaw.components import events

LINES_PER_STAGE = 10


class Progress:
    """The stages of one run, fed with the lines of its log.

    Args:
        stages: All stages, in order.
        console: Where to show them; whether it is a terminal decides between bars and lines.
        verbose: Show the whole log as well.
    """

    def __init__(self, stages: Sequence[str], console: Console, verbose: bool = False):
        self._console = console
        self._verbose = verbose
        self._width = max(map(len, stages))
        self._shown: dict[str, int] = {}
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        if console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            for stage in stages:
                self._tasks[stage] = self._bars.add_task(stage.ljust(self._width), start=False, total=1, note="")

    def __enter__(self) -> "Progress":
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def show(self, line: str) -> None:
        """Take in one line of the log."""
        event = events.parse(line)
        if event is None:
            if self._verbose:
                self._console.print(line.rstrip("\n"), markup=False, highlight=False)
        elif event["event"] == "stage":
            self._show_stage(event)
        elif event["event"] == "progress":
            self._show_progress(event)
        elif event["event"] == "warning":
            self._say(str(event.get("stage", "")), f"warning: {event.get('message')}")

    def _show_stage(self, event: dict[str, Any]) -> None:
        stage, status = event["stage"], event["status"]
        if self._bars and (task := self._tasks.get(stage)) is not None:
            if status == "started":
                self._bars.start_task(task)
            elif status == "committed":
                total = self._bars.tasks[task].total
                self._bars.update(task, completed=total, note="")
                self._bars.stop_task(task)
            else:
                self._bars.update(task, note=f"[red]{status}")
                self._bars.stop_task(task)
        else:
            seconds = f" after {event['seconds']:.1f} s" if "seconds" in event else ""
            self._say(stage, f"{status}{seconds}")

    def _show_progress(self, event: dict[str, Any]) -> None:
        stage, step, num_steps = event["stage"], event["step"], event["num_steps"]
        note = f"loss {event['loss']:.4f}" if event.get("loss") is not None else ""
        if self._bars and (task := self._tasks.get(stage)) is not None:
            self._bars.update(task, completed=step, total=num_steps, note=note)
        elif step * LINES_PER_STAGE // num_steps > self._shown.get(stage, 0):
            self._shown[stage] = step * LINES_PER_STAGE // num_steps
            self._say(stage, f"step {step} of {num_steps}  {note}")

    def _say(self, stage: str, text: str) -> None:
        self._console.print(f"{stage.ljust(self._width)}  {text}", markup=False, highlight=False)
