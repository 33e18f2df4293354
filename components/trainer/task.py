"""Both halves of a model and its loss as one module, for a plain loop:

    for batch in batches:
        loss = model(batch)
        loss.backward(); optimizer.step(); optimizer.zero_grad()

The sparse half's collectives run on a process group of their own, DistributedDataParallel's on another, those of the
losses on a third: within a group the order is the same on every rank, whatever overlaps between them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thaw.components.config import RunConfig
from thaw.components.trainer.batches import RankingBatch
from thaw.components.trainer.collectives import Counts, Gathering
from thaw.components.trainer.losses import contrastive, weighted_bce
from thaw.components.trainer.model import Ranker
from thaw.components.trainer.reading import PairBatch
from thaw.components.trainer.tables import ShardedTables


class RankingModel(nn.Module):
    """The ranker over its tables. Collective: all ranks must call it on their shares of one global batch."""

    def __init__(
        self,
        config: RunConfig,
        tables: ShardedTables,
        ranker: Ranker,
        dense: dist.ProcessGroup,
        loss: dist.ProcessGroup,
    ) -> None:
        """Put the halves together; the ranker's parameters become those of rank 0.

        Args:
            config: the run's document.
            tables: the sparse half.
            ranker: the dense half, on its device.
            dense: group of the dense half's gradients.
            loss: group of the losses.
        """
        super().__init__()
        self.tables = tables
        self.dense = DistributedDataParallel(ranker, process_group=dense, gradient_as_bucket_view=True)
        self._loss_group = loss
        self._contrastive = config.model.contrastive
        weights = torch.tensor([head.weight for head in config.data.heads])
        self._head_weight_H = (weights / weights.sum()).to(ranker.position.device)
        self.parts: dict[str, torch.Tensor] = {}
        """The terms of the last loss, detached."""

    def forward(self, batch: RankingBatch) -> torch.Tensor:
        """This rank's share of the loss of the global batch, times the world size."""
        counts = Counts((batch.source.num_rows, batch.num_pairs), self._loss_group)
        ranking = self.dense(self.tables(batch.ids), batch)
        num_rows, num_pairs = zip(*counts.wait(), strict=True)
        loss = bce = weighted_bce(ranking.logits, batch.labels, self._head_weight_H, num_rows)
        self.parts = {"bce": bce.detach()}
        if ranking.user is not None and ranking.item is not None and batch.pairs is not None:
            term = contrastive(
                ranking.user,
                ranking.item,
                batch.pairs.keys,
                batch.pairs.log_q,
                self._contrastive.temperature,
                Gathering(num_pairs, self._loss_group),
                mask_same_item=False,
            )
            self.parts["contrastive"] = term.detach()
            loss = loss + self._contrastive.weight * term
        return loss


class TwoTowers(nn.Module):
    """The backbone's model: a user and an item are as near as the angle between their rows. No dense parameter."""

    def __init__(
        self, tables: ShardedTables, item_log_q: torch.Tensor, temperature: float, loss: dist.ProcessGroup
    ) -> None:
        """Put the tables under a contrastive loss.

        Args:
            tables: with features `user` and `item`.
            item_log_q: [rows of the item table] log of the item's share of the engagements.
            temperature: of the loss.
            loss: group of the loss.
        """
        super().__init__()
        self.tables = tables
        self._item_log_q = item_log_q
        self._temperature = temperature
        self._loss_group = loss

    def forward(self, batch: PairBatch) -> torch.Tensor:
        """This rank's share of the loss of the global batch, times the world size."""
        counts = Counts((batch.num_pairs,), self._loss_group)
        rows = self.tables(batch.ids)
        user_K, item_K = batch.ids["user"].values(), batch.ids["item"].values()
        return contrastive(
            F.normalize(rows["user"].values(), dim=-1),
            F.normalize(rows["item"].values(), dim=-1),
            torch.stack([user_K, item_K], 1),
            self._item_log_q.index_select(0, item_K),
            self._temperature,
            Gathering(tuple(count for (count,) in counts.wait()), self._loss_group),
            mask_same_item=True,
        )
