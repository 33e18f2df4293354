"""A new run from some stage of another on: with today's code, on the other's window and on what it left."""

import datetime
from dataclasses import dataclass

from thaw.components import runs, storage
from thaw.components.config import RunConfig, changed
from thaw.components.storage.filesystem import is_local
from thaw.components.versions import check_versions
from thaw.pipelines.commands import absolute, console, run_here


@dataclass(frozen=True)
class Rerun:
    """What a rerun is to do."""

    config: RunConfig
    kind: str
    """Of its pipeline: `from:<stage>`, or `stage:<stage>`; after `backbone:` where the other run published one."""
    date: str
    """D of the other run, YYYY-MM-DD."""
    parent: runs.Parent
    arguments: dict[str, str]
    """Of its pipeline, beside the configuration, the run's folder and the backend."""
    backend: str
    """Where the other run ran."""

    def extra(self) -> dict[str, object]:
        """What the record of a rerun on this machine says beside the configuration."""
        parent = self.parent.model_dump(mode="json")
        return {"date": self.date, "backend": "local", "kind": self.kind, "parent": parent}


def plan_rerun(root: str, run_id: str, stage: str, *, only: bool = False, overrides: tuple[str, ...] = ()) -> Rerun:
    """The rerun of a run from a stage on, with all that it builds on checked. Nothing is written.

    Of stores on this machine every file of a model is read; of others its sizes are listed, and the first stage that
    takes it reads it, before its job begins.

    Args:
        root: Where `runs/` lies.
        run_id: The run.
        stage: The first stage to do again.
        only: Do no stage after it.
        overrides: `key.sub=value` each, in the run's configuration.

    Raises:
        ValueError: there is no such run or stage; or the configuration doesn't fit what the stage builds on.
        NotCommittedError, ChangedOutputError, CheckpointError: what it builds on isn't there, or isn't what it was;
            with stage, path and both digests.
    """
    run_uri = runs.run_folder(root, run_id)
    lineage = runs.Lineage(run_uri)
    config = changed(lineage.record.config, overrides, f"configuration of run {run_id}")
    parent_kind = lineage.record.extra.get("kind", "whole")
    kind = runs.part_kind(parent_kind, stage, only)
    backend = lineage.record.extra.get("backend", "local")
    first = runs.config_stages(config, kind)[0]
    whole = runs.config_stages(config, runs.whole_kind(parent_kind))
    before = whole[: whole.index(first)]
    if not before:
        date = lineage.record.extra.get("date") or (lineage.find(stage)[1].window or {})["date"]
        parent = runs.Parent(run=run_id, stage=stage, inputs={})
        return Rerun(config, kind, date, parent, {"date": date}, backend)

    reference, manifest = lineage.find(before[-1])
    inputs = {before[-1]: (reference, manifest)}
    if before[-1] != "select-window":
        inputs["select-window"] = lineage.find("select-window", seen_by=manifest)
    for input_reference, input_manifest in inputs.values():
        runs.check_attempt(input_reference, input_manifest, whole=is_local(storage.open_filesystem(run_uri)[0]))
    window_reference, window = inputs["select-window"]
    runs.check_same_data(window.config, config)
    if stage != "prepare-backbone":
        runs.check_same_config(manifest.config, config)
        runs.check_same_past(manifest.config, config, whole, stage)
    assert window.window is not None
    arguments = {"window_uri": window_reference.uri, "fingerprint": window.window["fingerprint"]}
    if stage != "prepare-backbone":
        arguments["parent_uri"] = reference.uri
    parent = runs.Parent(run=run_id, stage=stage, inputs={name: pair[0] for name, pair in inputs.items()})
    return Rerun(config, kind, window.window["date"], parent, arguments, backend)


def rerun_command(
    *,
    parent_id: str,
    stage: str,
    only: bool,
    overrides: tuple[str, ...],
    run_id: str | None,
    root: str,
    backend: str | None,
    verbose: bool,
    host: str | None,
    namespace: str | None,
    experiment: str,
    service_account: str | None,
    pipeline_root: str | None,
    retries: int,
    wait: bool,
    poll_s: float,
) -> None:
    """Run a run's pipeline again from a stage on, as a new run, here or on Kubeflow."""
    root = absolute(root)
    plan = plan_rerun(root, parent_id, stage, only=only, overrides=overrides)
    run_id = (
        run_id
        if run_id is not None
        else f"{plan.config.name}-{stage}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    )
    if (backend or plan.backend) == "local":
        check_versions(plan.config.training.device)
        run_uri = runs.create_run(root, run_id, plan.config, plan.extra())
        out = console()
        out.print(f"run {run_id}: run {parent_id} again, {'only' if only else 'from'} {stage}, in {run_uri}")
        run_here(plan.config, run_uri, plan.arguments, plan.kind, out, verbose)
        return
    from thaw.pipelines.kubeflow.client import Server
    from thaw.pipelines.kubeflow.commands import start, warn_of_image
    from thaw.pipelines.kubeflow.submit import Placement, request

    asked = request(
        plan.config,
        root,
        datetime.date.fromisoformat(plan.date),
        Placement(experiment, service_account, pipeline_root),
        run_id=run_id,
        num_retries=retries,
        kind=plan.kind,
        inputs=plan.arguments,
        parent=plan.parent,
    )
    warn_of_image(plan.config)
    start(Server(host, namespace), asked, wait, poll_s)
