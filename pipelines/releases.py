"""What a run gives to others: its model, promoted, and its backbone, published."""

from rich.table import Table
from rich.text import Text

from thaw.components import runs, storage
from thaw.components.promote.claims import DamagedClaim, claim, promoted_runs
from thaw.components.publish_backbone.publish import publish
from thaw.pipelines.commands import absolute, console


def promote_command(run_id: str, root: str) -> None:
    """Promote a run by hand."""
    run_uri = runs.run_folder(absolute(root), run_id)
    evaluate, manifest = runs.Lineage(run_uri).find("evaluate")
    promoted = claim(run_uri, evaluate, manifest, metric=None)
    print(f"{promoted.run_id} is promoted for {promoted.date}, at {promoted.promoted_at}")


def promoted_command(root: str) -> None:
    """List the promoted runs, the latest date first."""
    table = Table("date", "run", "by", "AUC", "log-loss", "promoted", box=None, pad_edge=False)
    promoted = promoted_runs(absolute(root))
    for run in promoted:
        if isinstance(run, DamagedClaim):
            table.add_row(str(run.date), "damaged", "", "", "", "")
            continue
        scores = [
            ", ".join(f"{head} {score:.4f}" for head, found in run.scores.items() if (score := found[name]) is not None)
            for name in ("auc", "log_loss")
        ]
        table.add_row(str(run.date), run.run_id, run.metric or run.by, *scores, run.promoted_at)
    out = console()
    out.print(table if promoted else f"no promoted runs in {storage.join(root, 'promoted')}")
    for run in promoted:
        if isinstance(run, DamagedClaim):
            out.print(Text(run.fault))


def publish_backbone_command(run_id: str, prefix_uri: str, root: str) -> None:
    """Publish the backbone that a run pretrained."""
    run_uri = runs.run_folder(absolute(root), run_id)
    uri = storage.join(absolute(prefix_uri, "--prefix-uri"), run_id)
    reference, manifest = runs.Lineage(run_uri).find("prepare-backbone")
    publish(runs.output_uri(reference.uri, manifest, "model"), uri)
    print(uri)
