"""The verbs of `thaw` for runs that have finished: again from a stage on, promoted, compared."""

import click

from thaw.pipelines.kubeflow.verbs import placement_options, poll_option, server_options
from thaw.pipelines.options import finish, set_option

root_option = click.option("--root", default=".", show_default=True, help="Where runs/ lies.")


@click.command()
@click.option("--run", "parent_id", required=True, metavar="RUN", help="The run to take up. It stays as it is.")
@click.option("--stage", required=True, metavar="STAGE", help="The first stage to do again, as train-cotrain.")
@click.option("--only", is_flag=True, help="Do this stage alone, and none of those after it.")
@set_option
@click.option("--run-id", help="Name of the new run. Default: made of the document's name, the stage and the time.")
@root_option
@click.option("--backend", type=click.Choice(["local", "kubernetes"]), help="Default: where the run ran.")
@click.option("--verbose", is_flag=True, help="Show the whole log. On this machine alone.")
@server_options
@placement_options
@click.option("--wait", is_flag=True, help="On Kubeflow: follow the run; the exit status is 0 if it succeeds.")
@poll_option
def rerun(**options):  # type: ignore[no-untyped-def]
    """Do a run again from a stage on: a new run, with today's code, on what the run left before that stage."""
    from thaw.pipelines.rerun import rerun_command

    finish(lambda: rerun_command(**options))


@click.command()
@click.argument("run_id", metavar="RUN")
@root_option
def promote(run_id, root):  # type: ignore[no-untyped-def]
    """Promote a run for its date by hand, whatever the gate says. Of a date one run is promoted, once."""
    from thaw.pipelines.releases import promote_command

    finish(promote_command, run_id, root)


@click.command()
@root_option
def promoted(root):  # type: ignore[no-untyped-def]
    """List the promoted runs, the latest date first: the first is the one to serve."""
    from thaw.pipelines.releases import promoted_command

    finish(promoted_command, root)


@click.command()
@click.argument("first", metavar="RUN1")
@click.argument("second", metavar="RUN2")
@root_option
def diff(first, second, root):  # type: ignore[no-untyped-def]
    """Say in what two runs differ: window, configuration, versions, figures."""
    from thaw.pipelines.diff import diff_command

    finish(diff_command, first, second, root)


@click.command("publish-backbone")
@click.argument("run_id", metavar="RUN")
@click.option("--prefix-uri", required=True, help="The folder that runs fetch backbones from.")
@root_option
def publish_backbone(run_id, prefix_uri, root):  # type: ignore[no-untyped-def]
    """Publish the backbone that a run pretrained, as <prefix>/<run>, for others to fetch."""
    from thaw.pipelines.releases import publish_backbone_command

    finish(publish_backbone_command, run_id, prefix_uri, root)
