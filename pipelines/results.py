"""What a finished run found: the table on the terminal and the report's path."""

from rich.console import Console

from thaw.components import runs
from thaw.components.runs import RunStatus, StageStatus


def report_uri(status: RunStatus) -> str | None:
    """Where a run's report is, or None while there is none."""
    evaluate = _done(status, "evaluate")
    has_report = evaluate and evaluate.manifest and "report" in evaluate.manifest.outputs
    return _output(evaluate, "report") if evaluate and has_report else None


def print_results(run_uri: str, console: Console) -> None:
    """Print what a finished run has: the table, whether it was promoted, where its backbone or its report is."""
    from thaw.components.evaluate.result import read_result
    from thaw.components.evaluate.summary import summary_table

    status = runs.run_status(run_uri)
    if evaluate := _done(status, "evaluate"):
        console.print(summary_table(read_result(_output(evaluate, "metrics"))))
    if (promote := _done(status, "promote")) and promote.manifest:
        why_not = promote.manifest.figures.get("why_not")
        console.print(f"not promoted: {why_not}" if why_not else "promoted", markup=False)
    last = status.stages[-1]
    if last.stage == "publish-backbone":
        console.print(f"backbone: {_output(last, 'model')}")
    elif evaluate:
        console.print(f"report: {_output(evaluate, 'report')}")
    else:
        console.print(f"{last.stage}: {last.uri}")


def _done(status: RunStatus, stage: str) -> StageStatus | None:
    return next((found for found in status.stages if found.stage == stage and found.manifest), None)


def _output(stage: StageStatus, name: str) -> str:
    assert stage.uri is not None and stage.manifest is not None
    return runs.output_uri(stage.uri, stage.manifest, name)
