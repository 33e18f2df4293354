"""What a finished run found: the table on the terminal and the report's path."""

from rich.console import Console

from thaw.components import runs, storage
from thaw.components.runs import RunStatus


def report_uri(status: RunStatus) -> str | None:
    """Where a run's report is, or None while there is none."""
    evaluate = status.stages[-1]
    if evaluate.manifest is None or evaluate.uri is None:
        return None
    return storage.join(evaluate.uri, evaluate.manifest.outputs["report"])


def print_results(run_uri: str, console: Console) -> None:
    """Print the table of a finished run, and where its report is."""
    from thaw.components.evaluate.result import EvaluationResult
    from thaw.components.evaluate.summary import summary_table

    status = runs.run_status(run_uri)
    evaluate = status.stages[-1]
    assert evaluate.manifest is not None and evaluate.uri is not None
    metrics_uri = storage.join(evaluate.uri, evaluate.manifest.outputs["metrics"])
    console.print(summary_table(EvaluationResult.model_validate_json(storage.read_bytes(metrics_uri))))
    console.print(f"report: {report_uri(status)}")
