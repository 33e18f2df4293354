"""What the verbs do that talk to Kubeflow. A fault of the input is a ValueError, and the exit status 1."""

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click
import yaml
from rich.table import Table

from thaw.components.config import RunConfig, from_parameter
from thaw.components.select_window.calendar import parse_date, parse_zone
from thaw.components.select_window.cron import Cron, daily_cron, parse_cron
from thaw.pipelines.commands import configured, console
from thaw.pipelines.data_sets import data_uri, with_data
from thaw.pipelines.kubeflow.backfill import backfill as fill
from thaw.pipelines.kubeflow.backfill import days_between, look
from thaw.pipelines.kubeflow.client import RecurringRun, Server, as_json
from thaw.pipelines.kubeflow.cost import cost_lines
from thaw.pipelines.kubeflow.place import check_no_password, check_over, check_reachable, image_warning
from thaw.pipelines.kubeflow.replace import first_after, put, remove, utc_now
from thaw.pipelines.kubeflow.schedule import check_server, digest_of, is_enabled, schedule, start_of, timing_of
from thaw.pipelines.kubeflow.submit import (
    ENDED,
    Kind,
    Placement,
    Request,
    ended_badly,
    follow,
    request,
    submit,
)
from thaw.pipelines.kubeflow.windows import Timing, windows_table

NUM_NEXT = 3
"""Windows of each schedule that `thaw schedules` shows."""


def submit_command(
    *,
    preset: str | None,
    config_path: str | None,
    overrides: tuple[str, ...],
    date: str | None,
    root: str,
    run_id: str | None,
    kind: Kind,
    host: str | None,
    namespace: str | None,
    experiment: str,
    service_account: str | None,
    pipeline_root: str | None,
    retries: int,
    dry_run: bool,
    wait: bool,
    poll_s: float,
) -> None:
    """Start a run, or print what would be sent."""
    config = configured(preset, config_path, overrides)
    if date is None and config.data.window.date is None:
        raise ValueError("no date: give --date YYYY-MM-DD, or set data.window.date")
    day = parse_date(date, "--date") if date is not None else config.data.window.date
    assert day is not None
    check_over(day, config, "--date" if date is not None else "data.window.date")
    check_reachable(root, "--root")
    data = config.data.model_copy(update={"uri": data_uri(config, root)})
    placed = config.model_copy(update={"data": data})
    placement = Placement(experiment, service_account, pipeline_root)
    asked = request(placed, root, day, placement, run_id=run_id, num_retries=retries, kind=kind)
    warn_of_image(config)
    if dry_run:
        _print_request(asked, retries)
        return
    server = Server(host, namespace)
    with_data(config, root, console())
    start(server, asked, wait, poll_s)


def start(server: Server, asked: Request, wait: bool, poll_s: float) -> None:
    """Start a run that is not there yet, and say where it is.

    Args:
        server: Of Kubeflow.
        asked: The run.
        wait: Follow it to its end.
        poll_s: Seconds between two looks at it.

    Raises:
        ValueError: it was there, or was followed, and has ended badly.
    """
    run, is_new = submit(server, asked)
    url, next_step = server.run_url(run.run_id), f"next: thaw why {asked.run_id} --root {asked.root}"
    print(
        f"run {asked.run_id}: {'started' if is_new else f'is there, {run.state}'}\n{asked.run_uri}\n{url}", flush=True
    )
    if not is_new and run.state in ENDED and (fault := ended_badly(run)):
        then = "then thaw rerun from a stage that failed, or thaw submit with another --run-id"
        raise ValueError(f"{fault}\n{next_step}, {then}")
    if not wait:
        return
    with _left_to_itself(url):
        ended = follow(server, run.run_id, lambda line: print(line, flush=True), poll_s)
    if fault := ended_badly(ended):
        raise ValueError(f"{fault}\n{url}\n{next_step}")


def schedule_command(
    *,
    name: str,
    daily: str | None,
    cron: str | None,
    lag_days: int,
    zone: str,
    catch_up: bool,
    max_concurrency: int,
    server_version: str | None,
    preset: str | None,
    config_path: str | None,
    overrides: tuple[str, ...],
    root: str,
    kind: Kind,
    host: str | None,
    namespace: str | None,
    experiment: str,
    service_account: str | None,
    pipeline_root: str | None,
    retries: int,
    yes: bool,
) -> None:
    """Show the next windows of a schedule, and put it into force."""
    now = utc_now()
    timing = Timing(_ticks(daily, cron), parse_zone(zone, "--zone"), lag_days)
    config = configured(preset, config_path, overrides)
    placement = Placement(experiment, service_account, pipeline_root)
    asked = schedule(
        name,
        timing,
        config,
        root,
        placement,
        now,
        kind=kind,
        num_retries=retries,
        catch_up=catch_up,
        max_concurrency=max_concurrency,
    )
    warn_of_image(config)
    server = Server(host, namespace)
    check_server(server, server_version)
    console().print(windows_table(timing, config, first_after(server, asked, now)))
    if not yes and _someone_is_there() and not click.confirm(f"Put schedule {name} into force at {server.host}?"):
        raise ValueError(f"schedule {name} is left as it was")
    put(server, asked, print)


def schedules_command(*, host: str | None, namespace: str | None) -> None:
    """List the schedules."""
    server = Server(host, namespace)
    found = [recurring for recurring in server.recurring_runs() if digest_of(recurring) is not None]
    for recurring in found:
        try:
            timing = timing_of(recurring)
        except ValueError as error:
            print(error)
            continue
        parameters = recurring.runtime_config.parameters
        state = "in force" if is_enabled(recurring) else "disabled"
        where = f"cron '{timing.cron.text}', zone {timing.zone.key}, lag {timing.lag_days} days, {parameters['root']}"
        print(f"{recurring.display_name}: {state}, {where}")
        if is_enabled(recurring):
            console().print(_next_windows(recurring, timing))
    if not found:
        print(f"no schedules at {server.host}")


def unschedule_command(*, name: str, host: str | None, namespace: str | None) -> None:
    """Delete a schedule."""
    remove(Server(host, namespace), name, print)


def backfill_command(
    *,
    preset: str | None,
    config_path: str | None,
    overrides: tuple[str, ...],
    first: str,
    last: str,
    root: str,
    schedule: str | None,
    kind: Kind,
    host: str | None,
    namespace: str | None,
    experiment: str,
    service_account: str | None,
    pipeline_root: str | None,
    retries: int,
    max_concurrent: int,
    dry_run: bool,
    poll_s: float,
) -> None:
    """Start a run for each day that is not done."""
    config = configured(preset, config_path, overrides)
    name = config.name if schedule is None else schedule
    placement = Placement(experiment, service_account, pipeline_root)
    asked: list[Request] = []
    dates = days_between(parse_date(first, "--from"), parse_date(last, "--to"))
    check_over(dates[-1], config, "--to")
    for date in dates:
        run_id, package = f"{name}-{date}", asked[0].package if asked else None
        asked.append(
            request(config, root, date, placement, run_id=run_id, num_retries=retries, kind=kind, package=package)
        )
    warn_of_image(config)
    server = Server(host, namespace)
    days = look(server, name, asked)
    if dry_run:
        table = Table("D", "run", "what is there", box=None, pad_edge=False)
        for day in days:
            table.add_row(str(day.asked.date), day.asked.run_id, day.state)
        console().print(table)
        if refusals := [f"{day.asked.date}: {day.refusal}" for day in days if day.refusal]:
            raise ValueError("\n".join(refusals))
        return
    with _left_to_itself("a second `thaw backfill` goes on from here"):
        failures = fill(server, days, max_concurrent, lambda line: print(line, flush=True), poll_s)
    if failures:
        raise ValueError("\n".join(failures))


def doctor_command(
    *,
    preset: str | None,
    config_path: str | None,
    overrides: tuple[str, ...],
    root: str,
    host: str | None,
    namespace: str | None,
    context: str | None,
    account: str | None,
) -> None:
    """Print what was found; a ValueError if something is missing."""
    from thaw.pipelines.kubeflow.doctor import findings

    config = configured(preset, config_path, overrides)
    check_no_password(root, "--root")
    check_no_password(config.data.uri, "data.uri")
    table = Table("", "what", "found", "what to do", box=None, pad_edge=False)
    num_missing = 0
    for finding in findings(config, root, host, namespace, context, account):
        num_missing += finding.state == "missing"
        table.add_row(finding.state, finding.name, finding.words, finding.fix or "")
    console().print(table)
    if num_missing:
        raise ValueError(f"{num_missing} missing")


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _ticks(daily: str | None, expression: str | None) -> Cron:
    if (daily is None) == (expression is None):
        raise ValueError("give --daily HH:MM or --cron 'S M H D M W', one of the two")
    if daily is not None:
        return daily_cron(daily)
    try:
        return parse_cron(str(expression))
    except ValueError as error:
        raise ValueError(f"--{error}") from None


def warn_of_image(config: RunConfig) -> None:
    """Tell, beside the output, of an image that can come to mean another."""
    if warning := image_warning(config):
        print(warning, file=sys.stderr)


def _print_request(asked: Request, num_retries: int) -> None:
    from thaw.pipelines.dry_run import training_manifests

    body = as_json(asked.body(f"<id of experiment {asked.placement.experiment}>"))
    manifests = training_manifests(asked.config, asked.root, asked.run_id, asked.kind)
    print("# POST /apis/v2beta1/runs")
    print(json.dumps(body, indent=1))
    print("---")
    yaml.safe_dump_all(manifests, sys.stdout, sort_keys=False)
    for line in cost_lines(manifests, num_retries):
        print(f"# {line}")


def _next_windows(recurring: RecurringRun, timing: Timing) -> Table | str:
    try:
        config: RunConfig = from_parameter(recurring.runtime_config.parameters["config"])
    except ValueError as error:
        return f"its configuration is not one of this version of Thaw: {str(error).splitlines()[0]}"
    return windows_table(timing, config, max(utc_now(), start_of(recurring)), NUM_NEXT)


@contextlib.contextmanager
def _left_to_itself(words: str) -> Iterator[Any]:
    """An interrupt ends the following, not the run."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nno longer followed; what was started goes on: {words}", file=sys.stderr)
        sys.exit(130)
