"""The backbone: ID tables pretrained on engagements alone, by the angle between a user's row and an item's."""

from typing import Any

import torch
import torch.nn.functional as F

from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.prepare_backbone.backbone import Backbone
from thaw.components.select_window.window import Window
from thaw.components.trainer.assembly import TOWER_FEATURES, build_tables, item_log_q, restore, total
from thaw.components.trainer.batches import pairs_on
from thaw.components.trainer.checksums import checksums
from thaw.components.trainer.figures import Tally, check_steps
from thaw.components.trainer.overlap import Overlap, prefetching
from thaw.components.trainer.progress import Progress
from thaw.components.trainer.reading import PairLoader, count_ids
from thaw.components.trainer.saving import Saver, plan_of
from thaw.components.trainer.semi_sync import LookaheadLoader
from thaw.components.trainer.startup import Ranks
from thaw.components.trainer.tables import ShardedTables
from thaw.components.trainer.task import TwoTowers

UNSEEN_LENGTH = 0.1
"""Length of a row that no engagement named. The others have length 1."""


def pretrain(spec: JobSpec, config: RunConfig, window: Window, ranks: Ranks) -> dict[str, Any]:
    """Train the tables, save them as a backbone under `model/`, and give the stage's figures. Collective.

    Raises:
        RuntimeError: an epoch did not make all of its steps, or none.
    """
    options = config.backbone.pretrain
    assert options is not None
    tables = build_tables(config, ranks, TOWER_FEATURES, options.table_lr)
    tensors = dict(tables.tensors())
    plan = plan_of(spec, config, window)
    resumed = restore(spec, config, tensors, ranks, plan) or {"epoch": 0, "step": 0}
    seen = {table: _engagements(config, window, table, ranks) for table in config.data.tables}
    model = TwoTowers(tables, item_log_q(seen["item"]).to(ranks.device), options.temperature, ranks.world)

    loaders = {
        epoch: PairLoader(
            config,
            window.engagements,
            ranks.rank,
            ranks.world_size,
            epoch,
            start_step=resumed["step"] if epoch == resumed["epoch"] else 0,
        )
        for epoch in range(resumed["epoch"], options.num_epochs)
    }
    steps_an_epoch = loaders[resumed["epoch"]].num_steps
    num_steps = options.num_epochs * steps_an_epoch
    saver = Saver(spec, config, ranks, tensors, plan)

    tally = Tally(ranks, resumed.get("counts"))
    with prefetching(config, tables, None, ranks) as forward:
        overlap = Overlap(forward, config.training.staleness)
        progress = Progress(
            spec.stage,
            spec.output_uri,
            num_steps,
            config.training.log_every_steps,
            ranks.world,
            overlap.recent,
            resumed.get("loss_curve", ()),
        )
        for epoch, loader in loaders.items():
            first_step = step = resumed["step"] if epoch == resumed["epoch"] else 0
            for batch in LookaheadLoader(pairs_on(ranks.device, loader), forward):
                loss = model(batch)
                loss.backward()

                step = batch.step + 1
                tally.add(num_pairs=batch.num_pairs)
                global_step = epoch * steps_an_epoch + step
                progress.step(global_step, batch.num_pairs, loss, {})
                if saver.is_due(global_step, num_steps):
                    forward.drain()
                    at = divmod(global_step, steps_an_epoch)
                    saver.checkpoint(global_step, *at, tally.counts(), progress.curve)
            check_steps(f"pretraining epoch {epoch}", first_step, step, steps_an_epoch, loader.num_rows)
            tally.add_ids(loader.id_counts)
    figures = tally.figures()
    progress.close()

    set_lengths(tables, seen)
    saver.backbone(Backbone.of(config, window.engagement_days))
    return {
        **figures,
        "num_steps": num_steps,
        "loss_curve": progress.curve,
        "pipeline": overlap.figures(ranks),
        "num_unseen_rows": {table: int((counts == 0).sum()) for table, counts in seen.items()},
        "checksums_after": checksums(tables.tensors(), ranks.world),
    }


@torch.no_grad()
def set_lengths(tables: ShardedTables, seen: dict[str, torch.Tensor]) -> None:
    """Give every row the length 1, which says that its angle alone was trained, and 0.1 where it wasn't.

    Args:
        tables: changed in place.
        seen: [rows of the table] by table: how many engagements name the row.
    """
    for table, shard in tables.shards():
        start, num_rows = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
        is_seen = (seen[table][start : start + num_rows] > 0).to(shard.tensor.device)
        length = torch.where(is_seen, 1.0, UNSEEN_LENGTH)
        shard.tensor.copy_(F.normalize(shard.tensor, dim=1) * length[:, None])


def _engagements(config: RunConfig, window: Window, table: str, ranks: Ranks) -> torch.Tensor:
    columns = config.data.engagements
    column = columns.user_id if table == "user" else columns.item_id
    counts = count_ids(config, window.engagements, column, table, ranks.rank, ranks.world_size, engagements=True)
    return total(counts, ranks)
