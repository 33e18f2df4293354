"""What the verbs of `thaw` do at a Kubernetes cluster, of which the kubeconfig tells."""

import datetime
import sys

import yaml
from rich.table import Table

from thaw.pipelines.commands import console


def jobs_command(namespace: str | None, context: str | None) -> None:
    """List the PyTorchJobs that Thaw made, the newest first."""
    from thaw.components.launcher.kubernetes.sweep import list_jobs

    api = _api(namespace, context)
    jobs = list_jobs(api)
    table = Table("job", "run", "stage", "attempt", "state", "age", box=None, pad_edge=False)
    for job in jobs:
        table.add_row(job.name, job.run_id, job.stage, job.attempt, job.state, _age(job.created_at))
    console().print(table if jobs else f"no jobs of Thaw in namespace {api.namespace}")


def sweep_command(namespace: str | None, context: str | None, delete: bool) -> None:
    """List the jobs that have not ended and whether anybody waits for them; delete those that nobody waits for."""
    from thaw.components.launcher.kubernetes.sweep import list_jobs, sweep

    api = _api(namespace, context)
    verdicts = [verdict for verdict in sweep(api, list_jobs(api), delete) if verdict.answer != "ended"]
    table = Table("job", "run", "state", "age", "found", "job then", "because", box=None, pad_edge=False)
    for verdict in verdicts:
        job = verdict.job
        table.add_row(
            job.name, job.run_id, job.state, _age(job.created_at), verdict.answer, verdict.fate, verdict.reason
        )
    console().print(table if verdicts else f"no job of Thaw is at work in namespace {api.namespace}")
    orphans = [verdict for verdict in verdicts if verdict.answer == "orphaned"]
    if orphans and not delete:
        console().print(f"{len(orphans)} orphaned; with --delete they are deleted")
    if failed := [verdict for verdict in orphans if delete and verdict.fate != "deleted"]:
        raise ValueError(f"{len(failed)} of {len(orphans)} orphaned jobs could not be deleted: {failed[0].fate}")


def rbac_command(namespace: str, account: str) -> None:
    """Print the Role and the RoleBinding that the steps need."""
    from thaw.components.launcher.kubernetes import rbac

    yaml.safe_dump_all(rbac.manifests(namespace, account), sys.stdout, sort_keys=False)


def _api(namespace: str | None, context: str | None):  # type: ignore[no-untyped-def]
    from thaw.components.launcher.kubernetes.access import namespace_of
    from thaw.components.launcher.kubernetes.client import Api

    return Api(namespace or namespace_of(context), context=context)


def _age(since: datetime.datetime) -> str:
    seconds = int((datetime.datetime.now(datetime.UTC) - since).total_seconds())
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds // length_s}{unit}"
    return f"{seconds}s"
