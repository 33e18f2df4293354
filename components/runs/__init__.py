"""The record of every run: where its files lie, what was tried, what came of it.

    <root>/runs/<run id>/run.json                                what was asked for
    <root>/runs/<run id>/<stage>/attempt-<k>/claim.json          who tries, since when
                                             ...                 the stage's own files
                                             manifest.json       written last: the attempt is committed
                                             failure.json        or why it is not

Nothing is ever replaced: another try is another attempt, and a reader trusts an attempt only with its manifest.
"""

from thaw.components.runs.agreement import check_same_config, check_same_plan, check_same_run
from thaw.components.runs.attempt import (
    STAGES,
    Attempt,
    begin_attempt,
    committed_attempt,
    stage_names,
)
from thaw.components.runs.manifest import (
    Failure,
    NotCommittedError,
    Reference,
    StageManifest,
    commit,
    fail,
    read_failure,
    read_manifest,
)
from thaw.components.runs.run import RunRecord, create_run, list_runs, open_run, read_run
from thaw.components.runs.stage import Stage, stage
from thaw.components.runs.status import RunStatus, StageStatus, run_status
from thaw.components.runs.versions import versions

__all__ = [
    "STAGES",
    "Attempt",
    "Failure",
    "NotCommittedError",
    "Reference",
    "RunRecord",
    "RunStatus",
    "Stage",
    "StageManifest",
    "StageStatus",
    "begin_attempt",
    "check_same_config",
    "check_same_plan",
    "check_same_run",
    "commit",
    "committed_attempt",
    "create_run",
    "fail",
    "list_runs",
    "open_run",
    "read_failure",
    "read_manifest",
    "read_run",
    "run_status",
    "stage",
    "stage_names",
    "versions",
]
