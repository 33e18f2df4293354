"""A schedule: what is asked for, and the recurring run of Kubeflow that stands for it."""

import datetime
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import kfp_server_api

from thaw.components import runs
from thaw.components.config import RunConfig, to_parameter
from thaw.components.select_window.calendar import parse_zone
from thaw.components.select_window.cron import parse_cron
from thaw.components.select_window.logs import wanted_logs
from thaw.pipelines.kubeflow.client import RecurringRun, Server, instant
from thaw.pipelines.kubeflow.package import Package, check_arguments, compiled
from thaw.pipelines.kubeflow.place import check_place, check_retries
from thaw.pipelines.kubeflow.submit import Kind, Placement
from thaw.pipelines.kubeflow.windows import Timing, check_timing

NEEDED_VERSION = (2, 17)
"""Of the server: older ones hand the placeholder of the scheduled time on unexpanded, or empty
(https://github.com/kubeflow/pipelines/issues/12616), and delete the runs of a schedule that is deleted."""
MAX_CONCURRENCY = 10
"""Kubeflow's controller takes more for this."""
MAX_NAME_LENGTH = 100

_MARK = re.compile(r"thaw schedule (sha256:[0-9a-f]{64})")


@dataclass(frozen=True)
class Schedule:
    """A schedule that is asked for: checked, and not sent yet."""

    name: str
    timing: Timing
    config: RunConfig
    root: str
    placement: Placement
    package: Package
    kind: Kind = "whole"
    num_retries: int = 0
    catch_up: bool = False
    """Whether each tick that was missed is run, one after the other; else the newest alone."""
    max_concurrency: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        """What the pipeline is given, the same for each run."""
        return {
            "config": to_parameter(self.config),
            "root": self.root,
            "schedule": self.name,
            "cron": self.timing.cron.text,
            "zone": self.timing.zone.key,
            "lag_days": self.timing.lag_days,
            "backend": "kubernetes",
        }

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over all that is asked for: another digest is another schedule."""
        body = self._body(None, None, False)
        asked = {**kfp_server_api.ApiClient().sanitize_for_serialization(body), "experiment": self.placement.experiment}
        return f"sha256:{hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()}"

    def body(self, experiment_id: str, start: datetime.datetime, enabled: bool) -> RecurringRun:
        """The recurring run as the API takes it.

        Args:
            experiment_id: Of its runs.
            start: The first tick is the first one after it.
            enabled: Whether it triggers runs.
        """
        made = self._body(experiment_id, start, enabled)
        made.description = f"thaw schedule {self.digest}"
        return made

    def _body(self, experiment_id: str | None, start: datetime.datetime | None, enabled: bool) -> RecurringRun:
        return RecurringRun(
            display_name=self.name,
            experiment_id=experiment_id,
            pipeline_spec=self.package.document,
            runtime_config=kfp_server_api.V2beta1RuntimeConfig(
                parameters=self.arguments, pipeline_root=self.placement.pipeline_root
            ),
            service_account=self.placement.service_account,
            max_concurrency=str(self.max_concurrency),
            no_catchup=not self.catch_up,
            mode="ENABLE" if enabled else "DISABLE",
            trigger=kfp_server_api.V2beta1Trigger(
                cron_schedule=kfp_server_api.V2beta1CronSchedule(
                    cron=self.timing.cron.text, start_time=instant(start) if start else None
                )
            ),
        )


def schedule(
    name: str,
    timing: Timing,
    config: RunConfig,
    root: str,
    placement: Placement,
    now: datetime.datetime,
    *,
    kind: Kind = "whole",
    num_retries: int = 0,
    catch_up: bool = False,
    max_concurrency: int = 1,
) -> Schedule:
    """A schedule, checked as far as can be told from here; nothing is written and nothing is sent.

    Raises:
        ValueError: the name can begin no run's id, the pods can't reach the root or the data, the timing gives a D
            twice or before it is over, the calendar has no such window, or the pipeline does not take these arguments.
    """
    if not name or len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"schedule {name!r}: a name has 1 to {MAX_NAME_LENGTH} characters")
    try:
        runs.check_run_id(name)
    except ValueError as error:
        raise ValueError(str(error).replace("run id", "schedule", 1)) from None
    check_place(config, root, kind)
    check_retries(num_retries)
    root = root.rstrip("/")
    check_timing(timing, config, now)
    wanted_logs(config, str(config.data.uri), timing.day(now))
    if not 1 <= max_concurrency <= MAX_CONCURRENCY:
        raise ValueError(f"--max-concurrency {max_concurrency}: Kubeflow takes 1 to {MAX_CONCURRENCY}")
    package = compiled(config, num_retries, "scheduled" if kind == "whole" else f"scheduled-{kind}")
    made = Schedule(name, timing, config, root, placement, package, kind, num_retries, catch_up, max_concurrency)
    check_arguments(package, made.arguments)
    return made


def check_server(server: Server, stated: str | None = None) -> None:
    """Pass a server that tells a run for when it was scheduled.

    Args:
        server: The server.
        stated: The version that the user says it has; counts where the server itself does not say.

    Raises:
        ValueError: it is too old, or does not say what it is and nobody else does.
    """
    version, needed = server.version, "{}.{}".format(*NEEDED_VERSION)
    if version is None:
        if stated is None:
            raise ValueError(
                f"{server.host} does not say its version, and servers before {needed} don't tell a run for when it was "
                f"scheduled; find the version out, and give it as --server-version"
            )
        match = re.fullmatch(r"v?([0-9]+)\.([0-9]+)(\..*)?", stated)
        if match is None:
            raise ValueError(f"--server-version: '{stated}' is no version; give one as 2.17.0")
        version = (int(match[1]), int(match[2]))
    if version < NEEDED_VERSION:
        raise ValueError(
            f"{server.host} is Kubeflow Pipelines {version[0]}.{version[1]}: before {needed} a run is not told for "
            f"when it was scheduled; upgrade it, or have a cron of yours call `thaw submit --date`"
        )


def is_enabled(recurring: RecurringRun) -> bool:
    """Whether it triggers runs."""
    return bool(recurring.mode == "ENABLE")


def digest_of(recurring: RecurringRun) -> str | None:
    """The digest of the schedule that a recurring run was made for; None where it was made by others."""
    match = _MARK.fullmatch(recurring.description or "")
    return match[1] if match else None


def timing_of(recurring: RecurringRun) -> Timing:
    """When a recurring run that was made for a schedule triggers, and for which D.

    Raises:
        ValueError: it has been changed by other hands, so that it says no such thing; with its name and why.
    """
    parameters = (recurring.runtime_config and recurring.runtime_config.parameters) or {}
    clock = recurring.trigger and recurring.trigger.cron_schedule
    missing = [key for key in ("config", "root", "zone", "lag_days") if parameters.get(key) is None]
    try:
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        if not clock or not clock.cron:
            raise ValueError("it triggers by no cron")
        return Timing(parse_cron(clock.cron), parse_zone(str(parameters["zone"])), int(parameters["lag_days"]))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"schedule {recurring.display_name} is damaged ({recurring.recurring_run_id}): {error}; delete it by "
            f"`thaw unschedule {recurring.display_name}`, and make it again"
        ) from None


def start_of(recurring: RecurringRun) -> datetime.datetime:
    """After which instant its first tick comes."""
    start: datetime.datetime = recurring.trigger.cron_schedule.start_time or recurring.created_at
    return start.astimezone(datetime.UTC)
