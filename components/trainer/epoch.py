"""One epoch over the window, its tables frozen or trained along."""

from typing import Any

from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.select_window.window import Window
from thaw.components.trainer.assembly import RANKER_FEATURES, build_preparation, build_ranker, build_tables, restore
from thaw.components.trainer.checksums import checksums
from thaw.components.trainer.dense_state import dense_optimizer, dense_tensors
from thaw.components.trainer.figures import Tally, check_steps
from thaw.components.trainer.ledger import RowLedger
from thaw.components.trainer.overlap import Overlap, prefetching
from thaw.components.trainer.progress import Progress
from thaw.components.trainer.reading import RequestLoader
from thaw.components.trainer.saving import Saver, plan_of
from thaw.components.trainer.semi_sync import LookaheadLoader
from thaw.components.trainer.startup import Ranks
from thaw.components.trainer.task import RankingModel


def train_epoch(spec: JobSpec, config: RunConfig, window: Window, ranks: Ranks) -> dict[str, Any]:
    """Train the ranker, save it under `model/`, and give the stage's figures. Collective.

    Raises:
        RuntimeError: not all steps were made, or none; a table changed in a frozen epoch.
    """
    is_frozen = spec.policy == "frozen"
    tables = build_tables(
        config, ranks, RANKER_FEATURES, config.recipe.table_lr, frozen=config.data.tables if is_frozen else ()
    )
    ranker = build_ranker(config, ranks.device)
    optimizer = dense_optimizer(ranker, config.recipe)
    tensors = {**tables.tensors(), **dense_tensors(ranker, optimizer)}
    plan = plan_of(spec, config, window)
    resumed = restore(spec, config, tensors, ranks, plan) or {"epoch": spec.epoch, "step": 0}
    if resumed["epoch"] != spec.epoch:
        raise RuntimeError(f"{spec.resume_uri} is of epoch {resumed['epoch']}, and this job trains epoch {spec.epoch}")
    first_step = resumed["step"]
    model = RankingModel(config, tables, ranker, ranks.dense, ranks.world)

    loader = RequestLoader(config, window.training, ranks.rank, ranks.world_size, spec.epoch, start_step=first_step)
    prepare = build_preparation(config, window, ranks, with_pairs=True)
    ledger = RowLedger(spec.output_uri, ranks.rank, first_step) if config.training.row_ledger else None
    saver = Saver(spec, config, ranks, tensors, plan, ledger)
    before = checksums(tables.tensors(), ranks.world)

    tally = Tally(ranks, resumed.get("counts"))
    step = first_step
    model.train()
    with prefetching(config, tables, optimizer, ranks) as forward:
        overlap = Overlap(forward, 0 if is_frozen else config.training.staleness)
        progress = Progress(
            spec.stage,
            spec.output_uri,
            loader.num_steps,
            config.training.log_every_steps,
            ranks.world,
            overlap.recent,
            resumed.get("loss_curve", ()),
        )
        for batch in LookaheadLoader(prepare.over(loader), forward):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

            read = batch.source
            step = read.step + 1
            tally.add(num_requests=read.num_requests, num_rows=read.num_rows)
            if ledger is not None:
                ledger.add(read.step, read.request_ids[: read.num_requests])
            progress.step(step, read.num_requests, loss, model.parts)
            if saver.is_due(step, loader.num_steps):
                forward.drain()
                saver.checkpoint(step, spec.epoch, step, tally.counts(), progress.curve)
    tally.add_ids(loader.id_counts)
    figures = tally.figures()
    progress.close()

    check_steps(f"epoch {spec.epoch}", first_step, step, loader.num_steps, loader.num_rows)
    after = checksums(tables.tensors(), ranks.world)
    if is_frozen and before != after:
        changed = ", ".join(name for name in after if before[name] != after[name])
        raise RuntimeError(f"epoch {spec.epoch} is frozen, and {changed} changed in it")
    saver.model(spec.epoch, step)
    return {
        **figures,
        "first_step": first_step,
        "num_steps": loader.num_steps,
        "loss_curve": progress.curve,
        "pipeline": overlap.figures(ranks),
        "checksums_before": before,
        "checksums_after": after,
    }
