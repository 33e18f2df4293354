"""Runs of which evaluate is done, with figures of one's choice."""

import datetime

from thaw.components import storage
from thaw.components.config import load
from thaw.components.evaluate.result import Cold, Comparison, EvaluationResult, HeadResult, Metrics
from thaw.components.runs import Reference, StageManifest, create_run, read_manifest, stage

CONFIG = load("small", ["promotion={head: click, metric: auc, minimum: 0}"])


def metrics(auc: float | None = None, ne: float | None = None) -> Metrics:
    return Metrics(num_rows=10, num_positives=3, auc=auc, log_loss=0.5, ne=ne, calibration=1.0, ece=0.01, hit=0.7)


def result(auc: float | None, ne: float | None) -> EvaluationResult:
    plain = metrics(0.5, 1.0)
    head = HeadResult(
        name="click",
        better="up",
        model=metrics(auc, ne),
        calibration_bins=(),
        baselines={"global mean": plain},
        against={"global mean": Comparison(auc=None, log_loss=None)},
        warm=plain,
        train=plain,
        auc_gap=None,
        log_loss_gap=None,
        bayes=None,
        auc_from_bayes=None,
        excess_log_loss=None,
    )
    return EvaluationResult(
        num_rows=10,
        num_requests=5,
        num_users=2,
        num_train_rows=10,
        num_window_rows=10,
        hit_k=3,
        cold=Cold(users=None, items=None, either=None),
        heads=(head,),
    )


def evaluated(
    root: str, run_id: str, date: datetime.date | str, auc: float | None = 0.7, ne: float | None = 0.9
) -> tuple[str, Reference, StageManifest]:
    """A run whose evaluate is committed: its folder, the attempt and its manifest."""
    run_uri = create_run(root, run_id, CONFIG)
    with stage(CONFIG, run_uri, "evaluate") as current:
        document = result(auc, ne).model_dump_json().encode()
        storage.write_bytes(storage.join(current.uri, "metrics.json"), document)
        current.commit(outputs={"metrics": "metrics.json"}, window={"date": str(date)})
    manifest, digest = read_manifest(current.uri)
    return run_uri, Reference(uri=current.uri, digest=digest), manifest
