"""The verbs on the jobs of a Kubernetes cluster, and on what their launcher may do there."""

import click

from thaw.pipelines.options import finish


def _cluster_options(command):  # type: ignore[no-untyped-def]
    for option in (
        click.option("--context", metavar="NAME", help="Of the kubeconfig. Default: its current one."),
        click.option("--namespace", "-n", metavar="NAME", help="Where the jobs are. Default: the context's."),
    ):
        command = option(command)
    return command


@click.group(invoke_without_command=True)
@_cluster_options
@click.pass_context
def jobs(verb, namespace, context):  # type: ignore[no-untyped-def]
    """List the PyTorchJobs that Thaw made on a cluster."""
    from thaw.pipelines.cluster import jobs_command

    if verb.invoked_subcommand is None:
        finish(jobs_command, namespace, context)
    elif namespace or context:
        raise click.UsageError(f"give --namespace and --context after {verb.invoked_subcommand}")


@jobs.command()
@_cluster_options
@click.option("--delete", is_flag=True, help="Delete those that nobody waits for; without it they are listed.")
def sweep(namespace, context, delete):  # type: ignore[no-untyped-def]
    """Find the jobs that nobody waits for any more.

    A job is orphaned where its attempt is committed or has failed, or where its lease has not been renewed for twice
    its time-out. One that cannot be judged stays, and so does every job that Thaw did not make.
    """
    from thaw.pipelines.cluster import sweep_command

    finish(sweep_command, namespace, context, delete)


@click.command()
@click.option("--namespace", "-n", default="kubeflow", show_default=True, help="Where the jobs are.")
@click.option(
    "--service-account",
    default="pipeline-runner",
    show_default=True,
    metavar="[NAMESPACE:]NAME",
    help="Which the steps run under; of the same namespace, where none is named.",
)
def rbac(namespace, service_account):  # type: ignore[no-untyped-def]
    """Print the rights that the steps need, for `kubectl apply -f -`."""
    from thaw.pipelines.cluster import rbac_command

    finish(rbac_command, namespace, service_account)
