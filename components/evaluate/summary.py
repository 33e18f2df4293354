"""The last lines of a run on a terminal."""

from rich.table import Table
from rich.text import Text

from thaw.components.evaluate.result import EvaluationResult
from thaw.components.evaluate.words import difference, number, signed


def summary_table(result: EvaluationResult) -> Table:
    """One line a head. Beside AUC and log-loss stands the difference from the better baseline."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("head")
    has_truth = any(head.bayes for head in result.heads)
    columns = ["AUC", "over baseline", "log-loss", "over baseline"]
    columns += [*(["over Bayes"] if has_truth else []), "NE", "calibration", f"HIT@{result.hit_k}", "train AUC gap"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for head in result.heads:
        against = head.against[head.best_baseline]
        row = [number(head.model.auc), difference(against.auc), number(head.model.log_loss)]
        row += [difference(against.log_loss), *([signed(head.excess_log_loss)] if has_truth else [])]
        row += [number(head.model.ne, 3), number(head.model.calibration, 3), number(head.model.hit, 3)]
        table.add_row(head.name, *map(Text, [*row, signed(head.auc_gap)]))
    return table
