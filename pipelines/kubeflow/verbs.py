"""The verbs of `thaw` that talk to Kubeflow. Each imports what it needs when it is called."""

import math

import click

from thaw.pipelines.options import config_options, finish


def _options(*options):  # type: ignore[no-untyped-def]
    def add(command):  # type: ignore[no-untyped-def]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{value} is no pause; give seconds, more than 0", context, option)
    return value


_root = click.option("--root", required=True, metavar="URI", help="Where runs/ lies; a URI that pods reach, as gs://.")
server_options = _options(
    click.option("--host", metavar="URL", help="Of Kubeflow Pipelines; else as its own client finds it."),
    click.option("--namespace", metavar="NAME", help="Of your profile, where Kubeflow has many users."),
)
placement_options = _options(
    click.option("--experiment", default="thaw", show_default=True, metavar="NAME", help="Groups runs in Kubeflow."),
    click.option("--service-account", metavar="NAME", help="Of the steps, in Kubernetes."),
    click.option("--pipeline-root", metavar="URI", help="Where Kubeflow keeps its own artifacts."),
    click.option("--retries", default=3, show_default=True, help="How often Kubeflow tries a failed step again."),
)
poll_option = click.option(
    "--poll-s", default=10.0, show_default=True, callback=_seconds, help="Seconds between two looks at a run."
)
_kind = click.option(
    "--kind",
    default="whole",
    show_default=True,
    type=click.Choice(["whole", "backbone"]),
    help="The whole pipeline, or the one that publishes a backbone.",
)
_yes = click.option("--yes", is_flag=True, help="Don't ask.")


@click.command()
@config_options
@click.option("--date", metavar="YYYY-MM-DD", help="The first day that training never reads; else data.window.date.")
@_root
@click.option("--run-id", help="Name of the run. Default: made of the document and the date: asking twice is once.")
@_kind
@server_options
@placement_options
@click.option("--dry-run", is_flag=True, help="Print the request, the PyTorchJobs and what they cost at most; stop.")
@click.option("--wait", is_flag=True, help="Follow the run; the exit status is 0 if it succeeds.")
@poll_option
def submit(**options):  # type: ignore[no-untyped-def]
    """Start a run on Kubeflow."""
    from thaw.pipelines.kubeflow.commands import submit_command

    finish(lambda: submit_command(**options))


@click.command()
@click.argument("name")
@click.option("--daily", metavar="HH:MM", help="Once a day, UTC.")
@click.option("--cron", metavar="'S M H D M W'", help="Six fields, seconds first, UTC.")
@click.option("--lag-days", type=int, required=True, help="D lies so many days before the scheduled date.")
@click.option("--zone", default="UTC", show_default=True, help="Whose calendar gives the scheduled date.")
@click.option("--catch-up", is_flag=True, help="Run every tick that was missed; else the newest alone.")
@click.option("--max-concurrency", default=1, show_default=True, help="Runs at once, 1 to 10.")
@click.option("--server-version", metavar="X.Y", help="Of a server that does not say its version itself.")
@config_options
@_root
@_kind
@server_options
@placement_options
@_yes
def schedule(**options):  # type: ignore[no-untyped-def]
    """Have Kubeflow run a fresh window by the clock; a changed schedule replaces the one of its name."""
    from thaw.pipelines.kubeflow.commands import schedule_command

    finish(lambda: schedule_command(**options))


@click.command()
@server_options
def schedules(**options):  # type: ignore[no-untyped-def]
    """List the schedules with their next windows."""
    from thaw.pipelines.kubeflow.commands import schedules_command

    finish(lambda: schedules_command(**options))


@click.command()
@click.argument("name")
@server_options
def unschedule(**options):  # type: ignore[no-untyped-def]
    """Delete a schedule. Its runs go on."""
    from thaw.pipelines.kubeflow.commands import unschedule_command

    finish(lambda: unschedule_command(**options))


@click.command()
@config_options
@click.option("--from", "first", metavar="YYYY-MM-DD", required=True, help="The first D.")
@click.option("--to", "last", metavar="YYYY-MM-DD", required=True, help="The last D.")
@_root
@click.option("--schedule", metavar="NAME", help="Whose days these are. Default: the document's name.")
@_kind
@server_options
@placement_options
@click.option("--max-concurrent", default=1, show_default=True, type=click.IntRange(1), help="Runs at once.")
@click.option("--dry-run", is_flag=True, help="List the days and what is there of each; start none.")
@poll_option
def backfill(**options):  # type: ignore[no-untyped-def]
    """Start one run a day for days that are not done yet; return when all are started."""
    from thaw.pipelines.kubeflow.commands import backfill_command

    finish(lambda: backfill_command(**options))


@click.command()
@config_options
@_root
@server_options
@click.option("--context", help="Of kubectl's configuration.")
@click.option("--account", metavar="NAMESPACE:NAME", help="Whose rights count: the steps' service account.")
def doctor(**options):  # type: ignore[no-untyped-def]
    """Check whether Kubeflow, the cluster and the store are ready. Changes nothing."""
    from thaw.pipelines.kubeflow.commands import doctor_command

    finish(lambda: doctor_command(**options))


VERBS = (submit, schedule, schedules, unschedule, backfill, doctor)
