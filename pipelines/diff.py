"""In what two runs differ: window, configuration, versions, figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from thaw.components import runs
from thaw.components.evaluate.result import read_result
from thaw.components.runs.agreement import flat
from thaw.pipelines.commands import absolute, console

NONE = "–"


@dataclass(frozen=True)
class Part:
    """One part of the comparison."""

    name: str
    rows: tuple[tuple[str, str, str, str], ...]
    """Name, the value of each run, and by how much the second is more, if they are numbers. None if all are equal."""
    equal: str
    """What is equal, in words."""


def diff(root: str, first: str, second: str) -> tuple[Part, ...]:
    """The parts of a comparison of two runs: what differs; of the figures all, once one does.

    Raises:
        ValueError: there is no such run, or a record is damaged.
    """
    one, two = (_Findings(runs.run_folder(root, run_id)) for run_id in (first, second))
    window = f"D = {one.window.get('date', NONE)}, {one.window.get('fingerprint', 'not selected')}"
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    return (
        _part("window", one.window, two.window, window),
        _part("configuration", one.config, two.config, f"all {len(one.config)} keys"),
        _part("versions", one.versions, two.versions, versions),
        _part("figures", one.figures, two.figures, f"all {len(one.figures)} figures", whole=True),
    )


def diff_command(first: str, second: str, root: str) -> None:
    """Print a comparison of two runs, the parts that are equal in a line each."""
    out = console()
    for part in diff(absolute(root), first, second):
        if not part.rows:
            out.print(Text(f"{part.name}: equal, {part.equal}"))
            continue
        table = Table(part.name, first, second, box=None, pad_edge=False)
        if any(change for *_, change in part.rows):
            table.add_column("change", justify="right")
        for row in part.rows:
            table.add_row(*map(Text, row[: len(table.columns)]))
        out.print(table)


class _Findings:
    """What there is to compare of a run, each part as names and values."""

    def __init__(self, run_uri: str):
        status = runs.run_status(run_uri)
        done = {stage.stage: stage for stage in status.stages if stage.manifest}
        manifests = [stage.manifest for stage in done.values() if stage.manifest]
        windows = [manifest.window for manifest in manifests if manifest.window]
        self.window: dict[str, Any] = dict(flat(windows[0])) if windows else {}
        self.config: dict[str, Any] = dict(flat(status.record.config))
        versions = manifests[-1].versions if manifests else status.record.versions
        self.versions: dict[str, Any] = {"image": self.config.get("cluster.image", NONE), **versions}
        self.figures: dict[str, Any] = {}
        if (evaluate := done.get("evaluate")) and evaluate.uri and evaluate.manifest:
            self.figures = read_result(runs.output_uri(evaluate.uri, evaluate.manifest, "metrics")).figures()


def _part(name: str, one: Mapping[str, Any], two: Mapping[str, Any], equal: str, whole: bool = False) -> Part:
    rows = []
    for key in [*one, *(key for key in two if key not in one)]:
        left, right = one.get(key, NONE), two.get(key, NONE)
        if left != right or (whole and one != two):
            are_numbers = isinstance(left, float) and isinstance(right, float)
            change = "" if not are_numbers else "equal" if left == right else f"{right - left:+.4f}"
            rows.append((key, _shown(left), _shown(right), change))
    return Part(name, tuple(rows), equal)


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
