"""What the verbs of `thaw` do. A fault of the input is a ValueError, and the exit status 1."""

import datetime
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thaw.components import runs, storage
from thaw.components.config import RunConfig, load
from thaw.components.versions import check_versions
from thaw.pipelines.data_sets import Size, with_data
from thaw.pipelines.progress import Progress

Overrides = tuple[str, ...]
END_S = 15
"""How long a step may take to end its job and itself, once its driver is gone."""


def run_command(
    preset: str | None,
    config_path: str | None,
    overrides: Overrides,
    date: str | None,
    root: str,
    run_id: str | None,
    dry_run: bool,
    verbose: bool,
    kind: str,
) -> None:
    """Run a pipeline on this machine; print the table and the report's path."""
    from thaw.components.select_window.calendar import parse_date

    config = configured(preset, config_path, overrides)
    runs.config_stages(config, kind)  # refuses a configuration that does not say all that the kind needs
    if date is None and config.data.window.date is None:
        raise ValueError("no date: give --date YYYY-MM-DD, or set data.window.date")
    date = str(parse_date(date, "--date") if date is not None else config.data.window.date)
    root = absolute(root)
    run_id = run_id if run_id is not None else f"{config.name}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    runs.check_run_id(run_id)
    out = console()
    if dry_run:
        from thaw.pipelines.dry_run import training_manifests

        yaml.safe_dump_all(training_manifests(config, root, run_id, kind), sys.stdout, sort_keys=False)
        return
    check_versions(config.training.device)
    config = with_data(config, root, out)
    run_uri = runs.create_run(root, run_id, config, {"date": date, "backend": "local", "kind": kind})
    out.print(f"run {run_id}: window of {config.data.window.num_days} days before {date}, in {run_uri}")
    run_here(config, run_uri, {"date": date}, kind, out, verbose)


def run_here(
    config: RunConfig, run_uri: str, arguments: Mapping[str, str], kind: str, console: Console, verbose: bool
) -> None:
    """Run a pipeline on this machine, and print what came of it.

    Args:
        config: The run's configuration.
        run_uri: Folder of the run, which has its record.
        arguments: Of the pipeline, beside the configuration, the run's folder and the backend.
        kind: Of the pipeline.
        console: Where to print.
        verbose: Show the whole log.

    Raises:
        ValueError: it failed; with the cause.
    """
    from thaw.pipelines.local import PipelineError, run_pipeline
    from thaw.pipelines.results import print_results

    try:
        with Progress(runs.config_stages(config, kind), console, verbose) as progress:
            run_pipeline(config, run_uri, arguments, progress, kind)
    except PipelineError as error:
        raise ValueError(cause(run_uri, wait_s=END_S) or str(error)) from None
    print_results(run_uri, console)


def compile_command(
    preset: str | None, config_path: str | None, overrides: Overrides, output: str, retries: int, kind: str
) -> None:
    """Write the compiled pipeline."""
    from thaw.pipelines.compile import compile_pipeline

    compile_pipeline(configured(preset, config_path, overrides), Path(output), retries, kind)
    print(output)


def demo_command(size: Size, num_window_days: Literal[10, 20], seed: int, root: str) -> None:
    """Generate the demo log."""
    from thaw.pipelines.data_sets import make_demo

    print(make_demo(size, num_window_days, seed, absolute(root)))


def movielens_command(root: str) -> None:
    """Fetch MovieLens-100k."""
    from thaw.pipelines.data_sets import make_movielens

    print(make_movielens(absolute(root)))


def runs_command(root: str, limit: int) -> None:
    """List the runs, the newest first."""
    from thaw.pipelines.results import report_uri

    newest = runs.newest_runs(absolute(root), limit)
    kinds = {status.uri: _kind(status.record) for status in newest.statuses}
    has_parts = any(kinds.values())
    table = Table("run", "began", "date", *(["what"] if has_parts else []), "state", "report", box=None, pad_edge=False)
    for status in newest.statuses:
        record = status.record
        state: str = status.state
        for stage in status.stages:
            if stage.state not in ("committed", "absent"):
                state = f"{stage.state} in {stage.stage}"
                break
        date = str(record.extra.get("date", ""))
        what = [kinds[status.uri]] if has_parts else []
        table.add_row(record.run_id, record.created_at, date, *what, state, report_uri(status) or "")
    for uri, _ in newest.damaged:
        table.add_row(uri.rpartition("/")[2], "", "", *([""] if has_parts else []), "damaged", "")
    out = console()
    out.print(table if newest.num_runs else f"no runs in {storage.join(root, 'runs')}")
    for _, fault in newest.damaged:
        out.print(Text(fault))
    if newest.num_runs > limit:
        out.print(f"{newest.num_runs - limit} older runs are not shown: --limit")


def _kind(record: runs.RunRecord) -> str:
    """What a run is, where it is not a whole one: `backbone`, or `r from evaluate`."""
    parent, kind = runs.parent_of(record), str(record.extra.get("kind", "whole"))
    if parent is not None:
        return f"{parent.run} {kind.replace(':', ' ')}"
    return "" if kind == "whole" else kind


def why_command(run_id: str, root: str) -> None:
    """Say why a run failed."""
    run_uri = runs.run_folder(absolute(root), run_id)
    status = runs.run_status(run_uri)
    for stage in status.stages:
        if stage.stage == "promote" and stage.manifest and (why_not := stage.manifest.figures.get("why_not")):
            print(f"{run_id} was not promoted: {why_not}")
            return
    print(cause(run_uri) or f"{run_id}: nothing failed; its state is {status.state}")


def configured(preset: str | None, config_path: str | None, overrides: Overrides) -> RunConfig:
    """The document that --preset, --config and --set mean.

    Raises:
        ValueError: both or none can be read, or the document is not valid.
    """
    if preset and config_path:
        raise ValueError("give --preset or --config, not both")
    return load(config_path or preset or "demo", overrides)


def console() -> Console:
    """Where a verb prints: as wide as the terminal, elsewhere as wide as a table needs."""
    # Where no terminal says how wide it is, a table takes the room that it needs.
    return Console(soft_wrap=True) if sys.stdout.isatty() else Console(soft_wrap=True, width=200)


def absolute(root: str, option: str = "--root") -> str:
    """The root as every step finds it.

    Args:
        root: As it was given.
        option: That gave it.

    Raises:
        ValueError: it is empty, or in the memory of this process.
    """
    if not root.strip():
        raise ValueError(f"{option} is empty; name a folder, as . for this one")
    if root.startswith("memory:"):
        raise ValueError(f"root {root}: what is in the memory of one process is not seen by the steps; name a folder")
    return root if "://" in root else str(Path(root).absolute())


def cause(run_uri: str, wait_s: float = 0) -> str | None:
    """Why the run stopped, the cause itself on the last lines; None where no stage failed.

    Args:
        run_uri: Folder of the run.
        wait_s: How long a stage that still runs, as its driver is gone, may take to write down its end.
    """
    until = time.monotonic() + wait_s
    while runs.run_status(run_uri).state == "running" and time.monotonic() < until:
        time.sleep(0.2)
    for stage in runs.run_status(run_uri).stages:
        if stage.state == "died":
            return f"{stage.stage} died without a word (attempt {stage.attempt}: {stage.uri}); start a new run"
        if stage.failure is not None:
            failure = stage.failure
            lines = [f"{stage.stage} failed (attempt {stage.attempt}: {stage.uri})"]
            if "\n" not in failure.message:  # else the message has them
                lines += [f"  | {line}" for line in failure.last_lines]
            lines += [f"next: {failure.hint}"] if failure.hint else []
            where = f"{failure.replica}: " if failure.replica and failure.replica not in failure.message else ""
            return "\n".join([*lines, f"{where}{failure.message}"])
        if stage.state == "absent" and (refusal := runs.read_refusal(run_uri, stage.stage)):
            return f"{stage.stage} was refused, and is not tried again; start a new run\n{refusal.message}"
    return None
