"""The dense half: the ranker, from looked-up rows to logits.

Shapes:
    B  requests of this rank     N  candidates over all B (may be 0)    C  most candidates of a request
    L  history positions         S  L + 1: the user, then the history   M  history items over all B
    U  distinct candidate items  H  heads                               K  engaged pairs
    D  model.dim
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torchrec import JaggedTensor

from thaw.components.config import RunConfig
from thaw.components.trainer.batches import RankingBatch
from thaw.components.trainer.layers import (
    NUM_AGE_BUCKETS,
    ContentEncoder,
    Context,
    TransformerLayer,
    dot,
    small_embedding,
    target_attention,
)


@dataclass(frozen=True)
class Ranking:
    """What the ranker gives for a batch."""

    logits: torch.Tensor
    """[N, H]."""
    user: torch.Tensor | None
    """[K, D]: unit vectors of the user tower for the engaged pairs; None where the batch names no pairs."""
    item: torch.Tensor | None
    """[K, D]: unit vectors of the item tower."""


class Ranker(nn.Module):
    """User and item rows, history, content and context to one logit a head.

    The history, with the user in front, goes through a transformer; each candidate attends to it; products and dots of
    user, item, content and attended history go into one MLP for all heads. Rows of the tables are about of unit length,
    and are scaled by sqrt(D) so that their entries are of order 1.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        model, data, dim = config.model, config.data, config.model.dim
        self.scale = math.sqrt(dim)
        self.history_length = model.history_length if data.columns.history is not None else 0
        self.position = nn.Parameter(torch.randn(self.history_length + 1, dim) * 0.02)
        if data.num_history_actions is not None:
            self.action = small_embedding(data.num_history_actions, dim)
        if data.columns.history_age_s is not None:
            self.age = small_embedding(NUM_AGE_BUCKETS, dim)
        self.layers = nn.ModuleList(TransformerLayer(dim, model.num_heads) for _ in range(model.num_layers))

        self.content: ContentEncoder | None = None
        item_width, width = dim, 5 * dim + 2
        if data.items is not None and (data.items.patches is not None or data.items.tokens is not None):
            self.content = ContentEncoder(data.items, dim, model.num_heads, model.num_content_layers)
            item_width, width = 2 * dim, 8 * dim + 3
        self.query = nn.Linear(item_width, dim)
        self.context = Context(data.context)
        sizes = [width + self.context.width, *model.hidden_sizes]
        hidden = [layer for n, m in pairwise(sizes) for layer in (nn.Linear(n, m), nn.ReLU())]
        self.heads = nn.Sequential(*hidden, nn.Linear(sizes[-1], len(data.heads)))
        self.has_towers = model.contrastive.weight > 0
        if self.has_towers:
            self.user_tower = nn.Linear(2 * dim, dim)
            self.item_tower = nn.Linear(item_width, dim)

    def forward(self, rows: dict[str, JaggedTensor], batch: RankingBatch) -> Ranking:
        """Logits of every candidate, and the towers' vectors of every engaged pair.

        Args:
            rows: of the tables, by feature: `user`, `history`, `candidates`.
            batch: the batch that they were looked up for.
        """
        user_BD = _padded(rows["user"].values(), rows["user"], 1).squeeze(1) * self.scale
        item_ND = rows["candidates"].values() * self.scale
        content_ND = self._content(batch)
        of_item = [item_ND] if content_ND is None else [item_ND, content_ND]

        x_BSD, mask_BS = self._sequence(user_BD, rows["history"], batch)
        for layer in self.layers:
            x_BSD = layer(x_BSD, mask_BS)
        query_BCD = _by_request(self.query(torch.cat(of_item, -1)), batch)
        attended_ND = target_attention(query_BCD, x_BSD, mask_BS).flatten(0, 1).index_select(0, batch.slot_index)

        summary_BD = x_BSD[:, 0]
        user_ND = user_BD.index_select(0, batch.request_index)
        features = [user_ND, item_ND, user_ND * item_ND, attended_ND, attended_ND * item_ND]
        features += [dot(user_ND, item_ND), dot(attended_ND, item_ND)]
        if content_ND is not None:
            summary_ND = summary_BD.index_select(0, batch.request_index)
            features += [content_ND, summary_ND * content_ND, user_ND * content_ND, dot(user_ND, content_ND)]
        context = self.context(batch.categorical, batch.numeric)
        features += [value.index_select(0, batch.request_index) for value in context]
        logits_NH = self.heads(torch.cat(features, -1))
        if not self.has_towers or batch.pairs is None:
            return Ranking(logits_NH, None, None)

        row_K = batch.pairs.row_index
        request_K = batch.request_index.index_select(0, row_K)
        user_KD, summary_KD = user_BD.index_select(0, request_K), summary_BD.index_select(0, request_K)
        item_KD = item_ND.index_select(0, row_K)
        of_item_K = torch.cat([part.index_select(0, row_K) for part in of_item], -1)
        return Ranking(
            logits_NH,
            user=F.normalize(self.user_tower(torch.cat([user_KD, summary_KD], -1)) + user_KD, dim=-1),
            item=F.normalize(self.item_tower(of_item_K) + item_KD, dim=-1),
        )

    def _content(self, batch: RankingBatch) -> torch.Tensor | None:
        """[N, D], each distinct item encoded once; None where the data has no content."""
        if self.content is None or batch.content is None:
            return None
        of = batch.content
        content_UD = self.content(of.patches, of.tokens, of.token_mask, of.present)
        return content_UD.index_select(0, of.item_index)

    def _sequence(
        self, user_BD: torch.Tensor, history: JaggedTensor, batch: RankingBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The user, then the history, most recent first: [B, S, D]; and which positions are there: [B, S]."""
        x_BSD = user_BD[:, None] * 0.5
        mask_BS = torch.ones_like(user_BD[:, :1], dtype=torch.bool)
        if self.history_length:
            x_MD = history.values() * (self.scale * 0.5)
            if batch.history_action is not None:
                x_MD = x_MD + self.action(batch.history_action)
            if batch.history_age is not None:
                x_MD = x_MD + self.age(batch.history_age)
            place_L = torch.arange(self.history_length, device=x_MD.device)
            x_BSD = torch.cat([x_BSD, _padded(x_MD, history, self.history_length)], 1)
            mask_BS = torch.cat([mask_BS, place_L < history.lengths()[:, None]], 1)
        return x_BSD + self.position, mask_BS


def _padded(x: torch.Tensor, lengths: JaggedTensor, max_length: int) -> torch.Tensor:
    """[B, max_length, D] of values that lie as those of `lengths` do, zero where there is none."""
    return torch.ops.fbgemm.jagged_to_padded_dense(x, [lengths.offsets()], [max_length], 0.0)


def _by_request(x_ND: torch.Tensor, batch: RankingBatch) -> torch.Tensor:
    """[B, C, D], zero where a request has fewer candidates."""
    num_requests, dim = batch.ids.stride(), x_ND.shape[1]
    slots = x_ND.new_zeros(num_requests * batch.max_candidates, dim).index_add(0, batch.slot_index, x_ND)
    return slots.view(num_requests, batch.max_candidates, dim)
