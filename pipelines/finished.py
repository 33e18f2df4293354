"""The verbs of `thaw` for runs that have finished: again from a stage on, promoted, compared."""

import click

from thaw.pipelines.options import finish

root_option = click.option("--root", default=".", show_default=True, help="Where runs/ lies.")


@click.command()
@click.option("--run", "parent_id", required=True, metavar="RUN", help="The run to take up. It stays as it is.")
@click.option("--stage", required=True, metavar="STAGE", help="The first stage to do again, as train-cotrain.")
@click.option("--only", is_flag=True, help="Do this stage alone, and none of those after it.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one key of the run's configuration. Repeatable.",
)
@click.option("--run-id", help="Name of the new run. Default: made of the document's name, the stage and the time.")
@root_option
@click.option("--backend", default="local", show_default=True, help="Where it runs: local.")
@click.option("--verbose", is_flag=True, help="Show the whole log.")
def rerun(parent_id, stage, only, overrides, run_id, root, backend, verbose):  # type: ignore[no-untyped-def]
    """Do a run again from a stage on: a new run, with today's code, on what the run left before that stage."""
    from thaw.pipelines.commands import rerun_command

    finish(rerun_command, parent_id, stage, only, overrides, run_id, root, backend, verbose)
