"""Scores of a trained model: all of the evaluation days, and a sample of the window."""

import io
from typing import Any

import torch

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import Window
from thaw.components.trainer.assembly import RANKER_FEATURES, build_preparation, build_ranker, build_tables, restore
from thaw.components.trainer.dense_state import dense_tensors
from thaw.components.trainer.figures import Tally, check_steps
from thaw.components.trainer.reading import MISSING_ID, RequestBatch, RequestLoader
from thaw.components.trainer.saving import rows_alone
from thaw.components.trainer.startup import Ranks


def score(spec: JobSpec, config: RunConfig, window: Window, ranks: Ranks) -> dict[str, Any]:
    """Write `predictions/{evaluation,train}/part-<rank>.parquet`, one row a candidate, and give figures. Collective.

    The sample of the window is the same for every model of a seed: the first requests of epoch 0's order.
    """
    tables = build_tables(config, ranks, RANKER_FEATURES, config.recipe.table_lr, frozen=config.data.tables)
    ranker = build_ranker(config, ranks.device)
    restore(spec, config, {**rows_alone(tables.tensors()), **dense_tensors(ranker)}, ranks)
    prepare = build_preparation(config, window, ranks, with_pairs=False)
    heads = [head.name for head in config.data.heads]

    tally = Tally(ranks)
    ranker.eval()
    for name, files, limit in (
        ("evaluation", window.evaluation, None),
        ("train", window.training, config.evaluation.num_train_requests),
    ):
        loader = RequestLoader(
            config,
            files,
            ranks.rank,
            ranks.world_size,
            epoch=0,
            limit_rows=limit,
            shuffle=limit is not None,
            batch_size=config.evaluation.batch_size,
        )
        scored, num_steps = [], 0
        for batch in prepare.over(loader):
            with torch.no_grad():
                logits_NH = ranker(tables(batch.ids), batch).logits
            scored.append((batch.source, logits_NH.sigmoid().cpu()))
            num_steps += 1
            tally.add(**{f"num_{name}_requests": batch.source.num_requests, f"num_{name}_rows": batch.source.num_rows})
        check_steps(f"scoring {name}", 0, num_steps, loader.num_steps, loader.num_rows)
        tally.add_ids({f"{name}.{feature}": counts for feature, counts in loader.id_counts.items()})
        uri = storage.join(spec.output_uri, "predictions", name, f"part-{ranks.rank}.parquet")
        storage.write_bytes(uri, _parquet(scored, heads))
    return tally.figures()


def _parquet(scored: list[tuple[RequestBatch, torch.Tensor]], heads: list[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(parts: list[torch.Tensor], kind: pa.DataType, missing: int | None = None) -> pa.Array:
        values = torch.cat(parts)
        mask = None if missing is None else (values == missing).numpy()
        return pa.array(values.numpy(), kind, mask=mask)

    per_row = [
        torch.repeat_interleave(batch.ids["candidates"].lengths().long(), output_size=batch.num_rows)
        for batch, _ in scored
    ]
    columns = {
        "request_id": column([batch.request_ids[row] for (batch, _), row in zip(scored, per_row)], pa.int64()),
        "user_id": column([batch.user_ids[row] for (batch, _), row in zip(scored, per_row)], pa.int64(), MISSING_ID),
        "item_id": column([batch.item_ids for batch, _ in scored], pa.int64()),
    }
    for index, head in enumerate(heads):
        columns[f"{head}_label"] = column([batch.labels[:, index] for batch, _ in scored], pa.int8())
        columns[f"{head}_score"] = column([scores[:, index] for _, scores in scored], pa.float32())
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()
