"""The parts of a job, built from its documents: tables, ranker, what batches are prepared with, state to go on from."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.jobs import JobSpec
from thaw.components.prepare_backbone.backbone import BACKBONE
from thaw.components.runs import check_same_plan
from thaw.components.select_window.window import Window
from thaw.components.trainer import checkpoint
from thaw.components.trainer.batches import Preparation
from thaw.components.trainer.model import Ranker
from thaw.components.trainer.reading import count_ids, load_items
from thaw.components.trainer.saving import rows_alone
from thaw.components.trainer.startup import Ranks
from thaw.components.trainer.tables import ShardedTables, TableOptimizer, TableSpec

RANKER_FEATURES = {"user": ("user",), "item": ("history", "candidates")}
TOWER_FEATURES = {"user": ("user",), "item": ("item",)}


def build_tables(
    config: RunConfig,
    ranks: Ranks,
    features: Mapping[str, tuple[str, ...]],
    lr: float,
    frozen: Collection[str] = (),
) -> ShardedTables:
    """The tables of the document with their initial rows. Collective.

    Args:
        config: the run's document.
        ranks: who shares them.
        features: that look rows up in each table.
        lr: of their optimizer.
        frozen: tables that do not train.
    """
    return ShardedTables(
        tuple(TableSpec(name, table.num_rows, features[name]) for name, table in config.data.tables.items()),
        config.model.dim,
        TableOptimizer(config.recipe.table_optimizer, lr, config.recipe.table_weight_decay),
        seed=config.seed,
        group=ranks.sparse,
        device=ranks.device,
        sharding=config.training.sharding,
        frozen=frozen,
    )


def build_ranker(config: RunConfig, device: torch.device) -> Ranker:
    """The ranker with its initial parameters, a function of the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Ranker(config).to(device)


def build_preparation(config: RunConfig, window: Window, ranks: Ranks, *, with_pairs: bool) -> Preparation:
    """What turns read batches into ranking batches. Collective where `with_pairs`, as candidates are counted.

    Args:
        config: the run's document.
        window: its files.
        ranks: who shares the counting.
        with_pairs: whether a contrastive loss will be computed, if the document asks for one.
    """
    items = config.data.items
    has_content = items is not None and (items.patches is not None or items.tokens is not None)
    log_q = None
    if with_pairs and config.model.contrastive.weight:
        column = config.data.columns.candidates
        counts = count_ids(config, window.training, column, "item", ranks.rank, ranks.world_size)
        log_q = item_log_q(total(counts, ranks))
    return Preparation(config, ranks.device, load_items(config, window.items) if has_content else None, log_q)


def total(counts: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The sum over ranks of a tensor of the host. Collective."""
    dist.all_reduce(counts, group=ranks.world)
    return counts


def item_log_q(counts: torch.Tensor) -> torch.Tensor:
    """float32: log of each row's share of the counts, each taken one higher so that none is zero."""
    smoothed = counts.double() + 1
    return (smoothed / smoothed.sum()).log().float()


def restore(
    spec: JobSpec,
    config: RunConfig,
    tensors: Mapping[str, torch.Tensor],
    ranks: Ranks,
    plan: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Fill the tensors in place from where the job is to go on. Collective.

    From a checkpoint that an earlier attempt left in mid-epoch, if there is one: everything. From a model: everything.
    From a backbone: the rows of the tables, so that their optimizer starts at zero.

    Args:
        spec: the job.
        config: the run's document.
        tensors: of the job, flat.
        ranks: who load.
        plan: what a step's number stands for in this job (`plan_of`); a checkpoint in mid-epoch must have the same.

    Raises:
        ValueError: on every rank, if the configuration or the plan disagrees.

    Returns:
        The progress of the checkpoint in mid-epoch; None where the job starts at its first step.
    """
    if spec.resume_uri is not None:
        progress = checkpoint.load(spec.resume_uri, tensors, group=ranks.world, document=config)
        check_same_plan(progress["plan"], dict(plan or {}))
        return progress
    if spec.checkpoint_uri is None:
        return None
    if storage.exists(storage.join(spec.checkpoint_uri, BACKBONE)):
        checkpoint.load(spec.checkpoint_uri, rows_alone(tensors), group=ranks.world)
    else:
        checkpoint.load(spec.checkpoint_uri, tensors, group=ranks.world, document=config)
    return None
