"""The parts of the ranker. Each is a plain module of torch, free of collectives and of TorchRec.

Shapes:
    B  sequences (requests, or distinct items)    S  positions of a sequence    D  width
    U  distinct candidate items of the batch      P  patches of an item         F  width of a patch
    T  tokens of an item
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from thaw.components.config.data import ContextFeature, Items

NUM_AGE_BUCKETS = 32
"""Buckets of the age of a history item; the last begins at 2**31 seconds, 68 years."""
CATEGORY_DIM = 8
"""Width of the embedding of a categorical context feature."""


class TransformerLayer(nn.Module):
    """Self-attention and a GELU network of twice the width, each behind a layer norm and around a residual."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.network_norm = nn.LayerNorm(dim)
        self.network = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x_BSD: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
        """[B, S, D]; positions where the mask is False are attended by none."""
        num_sequences, length, dim = x_BSD.shape
        by_head = self.query_key_value(self.attention_norm(x_BSD)).view(
            num_sequences, length, 3, self.num_heads, dim // self.num_heads
        )
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask_BS[:, None, None, :])
        x_BSD = x_BSD + self.attention_out(mixed.transpose(1, 2).reshape(num_sequences, length, dim))
        return x_BSD + self.network(self.network_norm(x_BSD))


class ContentEncoder(nn.Module):
    """A small transformer over an item's patches and tokens. It stands where a vision-language model would."""

    def __init__(self, items: Items, dim: int, num_heads: int, num_layers: int) -> None:
        super().__init__()
        num_positions = 0
        if items.patches is not None:
            self.patch = nn.Linear(items.patches.width, dim)
            num_positions += items.patches.num
        if items.tokens is not None:
            self.token = nn.Embedding(items.tokens.vocabulary_size, dim)
            nn.init.normal_(self.token.weight, std=0.05)
            num_positions += items.tokens.max_length
        self.position = nn.Parameter(torch.randn(num_positions, dim) * 0.05)
        self.layers = nn.ModuleList(TransformerLayer(dim, num_heads) for _ in range(num_layers))
        self.out = nn.Linear(dim, dim)

    def forward(
        self,
        patches_UPF: torch.Tensor | None,
        tokens_UT: torch.Tensor | None,
        token_mask_UT: torch.Tensor | None,
        present_U: torch.Tensor,
    ) -> torch.Tensor:
        """[U, D], zero for an item that has no content."""
        parts, masks = [], []
        if patches_UPF is not None:
            parts.append(self.patch(patches_UPF))
            masks.append(torch.ones_like(patches_UPF[..., 0], dtype=torch.bool))
        if tokens_UT is not None and token_mask_UT is not None:
            parts.append(self.token(tokens_UT))
            masks.append(token_mask_UT)
        mask_US = torch.cat(masks, 1)
        # A softmax over nothing is NaN: an item without a single position attends to all of its padding.
        mask_US = mask_US | ~mask_US.any(1, keepdim=True)
        x_USD = torch.cat(parts, 1) + self.position
        for layer in self.layers:
            x_USD = layer(x_USD, mask_US)
        weight_US = mask_US.to(x_USD.dtype)
        mean_UD = (x_USD * weight_US[..., None]).sum(1) / weight_US.sum(1, keepdim=True).clamp(min=1)
        return self.out(mean_UD) * present_U[:, None]


class Context(nn.Module):
    """The request's features beside the ids: categories by an embedding, numbers compressed to their signed log."""

    def __init__(self, features: Sequence[ContextFeature]) -> None:
        super().__init__()
        self.categories = nn.ModuleDict(
            {
                feature.name: nn.Embedding(feature.cardinality, CATEGORY_DIM)
                for feature in features
                if feature.cardinality is not None
            }
        )
        self.numbers = [feature.name for feature in features if feature.kind == "numeric"]
        self.width = CATEGORY_DIM * len(self.categories) + sum(f.width for f in features if f.kind == "numeric")

    def forward(self, categorical: dict[str, torch.Tensor], numeric: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """One tensor [B, width of the feature] a feature."""
        embedded = [embedding(categorical[name]) for name, embedding in self.categories.items()]
        return embedded + [numeric[name].sign() * numeric[name].abs().log1p() for name in self.numbers]


def age_bucket(age_s: torch.Tensor) -> torch.Tensor:
    """The bucket of an age in seconds: 0 below 1 s, then one a doubling."""
    return (age_s.clamp(min=0).double() + 1).log2().floor().long().clamp(max=NUM_AGE_BUCKETS - 1)


def target_attention(query_BCD: torch.Tensor, x_BSD: torch.Tensor, mask_BS: torch.Tensor) -> torch.Tensor:
    """[B, C, D]: for each candidate's query the mean of the sequence, weighted by likeness."""
    likeness_BCS = query_BCD @ x_BSD.transpose(1, 2) / math.sqrt(x_BSD.shape[-1])
    likeness_BCS = likeness_BCS.masked_fill(~mask_BS[:, None, :], float("-inf"))
    return likeness_BCS.softmax(-1) @ x_BSD


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """[..., 1]: the dot product of two [..., D], divided by sqrt(D)."""
    return (a * b).sum(-1, keepdim=True) / math.sqrt(a.shape[-1])


def small_embedding(num: int, dim: int) -> nn.Embedding:
    """An embedding that begins near zero, to be added to something."""
    embedding = nn.Embedding(num, dim)
    nn.init.normal_(embedding.weight, std=0.02)
    return embedding
