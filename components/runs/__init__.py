"""The record of every run: where its files lie, what was tried, what came of it.

    <root>/runs/<run id>/run.json                                what was asked for
    <root>/runs/<run id>/<stage>/attempt-<k>/claim.json          who tries, since when
                                             ...                 the stage's own files
                                             manifest.json       written last: the attempt is committed
                                             failure.json        or why it is not
    <root>/runs/<run id>/<stage>/refused.json                    why no attempt at this request is ever made again

Nothing is ever replaced: another try is another attempt, and a reader trusts an attempt only with its manifest.
"""

from thaw.components.runs.agreement import (
    check_same_config,
    check_same_data,
    check_same_past,
    check_same_plan,
    check_same_run,
)
from thaw.components.runs.attempt import Attempt, begin_attempt, committed_attempt
from thaw.components.runs.content import ChangedOutputError, check_attempt, check_output
from thaw.components.runs.lineage import Lineage
from thaw.components.runs.manifest import (
    Failure,
    NotCommittedError,
    Reference,
    StageManifest,
    commit,
    fail,
    output_uri,
    read_failure,
    read_manifest,
)
from thaw.components.runs.refused import read_refusal, refusing
from thaw.components.runs.run import (
    Parent,
    RunRecord,
    check_run_id,
    create_run,
    open_run,
    parent_of,
    read_run,
    run_folder,
)
from thaw.components.runs.stage import Stage, stage
from thaw.components.runs.stages import (
    BACKBONE_STAGES,
    config_stages,
    part_kind,
    recorded_stages,
    stage_names,
    whole_kind,
)
from thaw.components.runs.status import NewestRuns, RunStatus, StageStatus, newest_runs, run_status
from thaw.components.runs.versions import versions

__all__ = [
    "BACKBONE_STAGES",
    "Attempt",
    "ChangedOutputError",
    "Failure",
    "Lineage",
    "NewestRuns",
    "NotCommittedError",
    "Parent",
    "Reference",
    "RunRecord",
    "RunStatus",
    "Stage",
    "StageManifest",
    "StageStatus",
    "begin_attempt",
    "check_attempt",
    "check_output",
    "check_run_id",
    "check_same_config",
    "check_same_data",
    "check_same_past",
    "check_same_plan",
    "check_same_run",
    "commit",
    "committed_attempt",
    "config_stages",
    "create_run",
    "fail",
    "newest_runs",
    "open_run",
    "output_uri",
    "parent_of",
    "part_kind",
    "read_failure",
    "read_manifest",
    "read_refusal",
    "read_run",
    "recorded_stages",
    "refusing",
    "run_folder",
    "run_status",
    "stage",
    "stage_names",
    "versions",
    "whole_kind",
]
