"""The plots of the report, as SVG that stands inside an HTML page.

They take their colours from the page's CSS variables, so that they follow it into the dark, and their text stays text.
Equal input gives equal bytes.
"""

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thaw.components.evaluate.provenance import StageRecord, TraceEvent
from thaw.components.evaluate.result import CalibrationBin
from thaw.components.select_window.window import Window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, LINE, ACCENT = "#010101", "#020202", "#030303", "#040404"
"""Stand-ins that matplotlib can draw with."""
VARIABLES = {INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)", ACCENT: "var(--accent)"}
MAX_POINTS = 200
"""Of one stage's loss curve; more logged losses than that are averaged."""
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.grid": True,
    "axes.labelcolor": QUIET,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.unicode_minus": True,
    "font.size": 8.5,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": QUIET,
    "xtick.major.size": 0,
    "ytick.color": QUIET,
    "ytick.major.size": 0,
}


def calibration(name: str, bins: Sequence[CalibrationBin]) -> str:
    """Mean label over mean score, bin by bin; a calibrated head lies on the diagonal."""

    def draw(axes: "Axes") -> None:
        predicted, observed = [part.predicted for part in bins], [part.observed for part in bins]
        top = max(*predicted, *observed, 1e-6) * 1.06
        axes.plot([0, top], [0, top], color=QUIET, linewidth=0.8, dashes=(3, 2))
        axes.plot(predicted, observed, color=ACCENT, marker="o", markersize=3.5)
        axes.set(xlim=(0, top), ylim=(0, top), xlabel="mean score", ylabel="share of label 1", aspect="equal")
        axes.locator_params(nbins=4)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.set_layout_engine("none")  # the axes of all heads are of one size
        axes.set_position((0.2, 0.17, 0.78, 0.78))

    return _svg(f"calibration-{name}", (2.7, 2.7), draw, f"Calibration of {name}")


def loss_curve(stages: Sequence[StageRecord]) -> str:
    """The logged training loss over the steps of all epochs, with their borders and policies.

    Args:
        stages: Training stages, each with a loss at least.
    """

    def draw(axes: "Axes") -> None:
        first = 0
        for stage in stages:
            color = ACCENT if stage.policy == "cotrain" else INK
            steps, losses = np.array(_thinned(stage.losses)).T
            axes.plot(first + steps, losses, color=color, alpha=0.3, linewidth=0.8)
            axes.plot(first + steps, _running_mean(losses), color=color)
            last = first + max(step for step, _ in stage.losses)
            axes.annotate(
                stage.name, ((first + last) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
                textcoords="offset points", ha="center", color=color,
            )  # fmt: skip
            if first:
                axes.axvline(first, color=QUIET, linewidth=0.8, dashes=(3, 2))
            first = last
        axes.set(xlabel="step", ylabel="training loss", xlim=(0, first))
        axes.xaxis.set_major_formatter("{x:,.0f}")

    return _svg("loss", (9.6, 3), draw, "Training loss over the steps of all epochs")


def timeline(trace: Sequence[TraceEvent]) -> str:
    """What ran when, row by row, each bar with the number of its batch.

    Args:
        trace: Of a few steps, one at least.
    """
    places = {event.row: event.where for event in trace}
    rows = sorted(places, key=lambda row: min(event.begin_s for event in trace if event.row == row), reverse=True)
    origin = min(event.begin_s for event in trace)

    def draw(axes: "Axes") -> None:
        for event in trace:
            begin_ms, length_ms = 1e3 * (event.begin_s - origin), 1e3 * (event.end_s - event.begin_s)
            height = rows.index(event.row)
            axes.barh(
                height, length_ms, left=begin_ms, height=0.7, color=ACCENT if event.batch % 2 else QUIET, alpha=0.75
            )
            axes.annotate(
                str(event.batch), (begin_ms, height + 0.35), xytext=(1, 1), textcoords="offset points", size=6.5
            )
        axes.set_yticks(range(len(rows)), [f"{row}\n({places[row]})" for row in rows])
        axes.grid(axis="y", visible=False)
        axes.set(xlabel="ms", ylim=(-0.6, len(rows) - 0.2))

    return _svg("timeline", (9.6, 0.7 + 0.5 * len(rows)), draw, "Timeline of a few steps of the pipeline")


def window_days(window: Window) -> str:
    """Requests of each training and evaluation day."""
    import matplotlib.dates

    num_requests = dict.fromkeys((*window.training_days, *window.missing_days, *window.evaluation_days), 0)
    for file in (*window.training, *window.evaluation):
        if file.day is not None:
            num_requests[file.day] = num_requests.get(file.day, 0) + file.num_rows
    days = sorted(num_requests)

    def draw(axes: "Axes") -> None:
        colors = [ACCENT if day in window.evaluation_days else QUIET for day in days]
        axes.bar(days, [num_requests[day] for day in days], color=colors, alpha=0.8, width=0.7)  # type: ignore[arg-type]
        for day in window.missing_days:
            axes.annotate("missing", (day, 0), xytext=(0, 3), textcoords="offset points", ha="center", rotation=90)  # type: ignore[arg-type]
        locator = matplotlib.dates.AutoDateLocator(minticks=2, maxticks=8)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(matplotlib.dates.DateFormatter("%d %b"))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="x", visible=False)
        axes.set(ylabel="requests")
        axes.locator_params(axis="y", nbins=4)

    return _svg("window", (9.6, 1.9), draw, "Requests of each day of the window and of the evaluation days")


def _thinned(losses: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most MAX_POINTS points, each the mean of equally many neighbours."""
    size = -(-len(losses) // MAX_POINTS)
    groups = [losses[start : start + size] for start in range(0, len(losses), size)]
    return [(sum(s for s, _ in group) / len(group), sum(loss for _, loss in group) / len(group)) for group in groups]


def _running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over a twentieth of the values around each; fewer at the ends."""
    kernel = np.ones(len(values) // 40 * 2 + 1)
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def _svg(name: str, size_inches: tuple[float, float], draw: Callable[["Axes"], None], label: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=size_inches, layout="constrained")
        draw(figure.subplots())
        return _inline(figure, name, label)


def _inline(figure: "Figure", name: str, label: str) -> str:
    """The figure's <svg> element, with ids that are its own on a page of many and without a size of its own."""
    buffer = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{label}">', text)
    text = re.sub(r" *<defs>\s*<style.*?</defs>\n", "", text, flags=re.DOTALL)  # would hold for the whole page
    text = re.sub(r"font-family: [^;]*; ", "", text).replace("xlink:href", "href")
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return text
