"""The losses on real ranks against one process that has everything, in float64 and in loops."""

import math
from typing import Any

import pytest
import torch
from worlds import Ranks, run_world

from thaw.components.trainer.collectives import Counts, Gathering
from thaw.components.trainer.losses import contrastive, weighted_bce

DIM, TEMPERATURE, NUM_HEADS = 4, 0.2, 2
WEIGHTS = [0.25, 0.75]


def rows_of(rank: int, num: int, width: int) -> torch.Tensor:
    return torch.randn(num, width, generator=torch.Generator().manual_seed(100 + rank))


def pairs_of(rank: int, num: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Users 0 to 2, items 0 to 3 and MISSING-like extremes, so that pairs of one user and of one item do occur."""
    draw = torch.Generator().manual_seed(rank)
    users = torch.randint(3, (num, 1), generator=draw) - 2**62
    items = torch.randint(4, (num, 1), generator=draw)
    log_q = -(1.0 + items[:, 0]) / 3
    return rows_of(rank, num, DIM), rows_of(rank + 50, num, DIM), torch.cat([users, items], 1), log_q


def on_ranks(ranks: Ranks, counts: tuple[int, ...], mask_same_item: bool) -> Any:
    num = counts[ranks.rank]
    user, item, keys, log_q = pairs_of(ranks.rank, num)
    logits, labels = rows_of(ranks.rank, num, NUM_HEADS), (rows_of(ranks.rank + 7, num, NUM_HEADS) > 0).float()
    inputs = [tensor.requires_grad_() for tensor in (user, item, logits)]
    told = Counts((num, 2 * num), ranks.world).wait()
    assert told == [(count, 2 * count) for count in counts]
    pull = contrastive(
        user, item, keys, log_q, TEMPERATURE, Gathering(counts, ranks.world), mask_same_item=mask_same_item
    )
    (pull + weighted_bce(logits, labels, torch.tensor(WEIGHTS), counts)).backward()
    return pull.item(), weighted_bce(logits, labels, torch.tensor(WEIGHTS), counts).item(), [x.grad for x in inputs]


def in_one(counts: tuple[int, ...], mask_same_item: bool, by_rank: bool = False) -> Any:
    """InfoNCE pair by pair and cross-entropy row by row; `by_rank` weighs ranks alike instead of rows."""
    user, item, keys, log_q = (torch.cat(parts) for parts in zip(*map(pairs_of, range(len(counts)), counts)))
    logits = torch.cat([rows_of(rank, num, NUM_HEADS) for rank, num in enumerate(counts)]).double()
    labels = torch.cat([rows_of(rank + 7, num, NUM_HEADS) > 0 for rank, num in enumerate(counts)]).double()
    user, item = user.double().requires_grad_(), item.double().requires_grad_()
    logits.requires_grad_()
    rank_of = [rank for rank, num in enumerate(counts) for _ in range(num)]
    pull = bce = torch.zeros((), dtype=torch.float64)
    for i in range(len(keys)):
        weight = 1 / (counts[rank_of[i]] * len(counts)) if by_rank else 1 / len(keys)
        scores = {i: user[i] @ item[i] / TEMPERATURE - log_q[i]}
        for j in range(len(keys)):
            same = keys[i, 0] == keys[j, 0] or (mask_same_item and keys[i, 1] == keys[j, 1])
            if not same:
                scores[j] = user[i] @ item[j] / TEMPERATURE - log_q[j]
        pull = pull + weight * (torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[i])
        for head in range(NUM_HEADS):
            p = torch.sigmoid(logits[i, head])
            right = p if labels[i, head] else 1 - p
            bce = bce - weight * WEIGHTS[head] * torch.log(right)
    (pull + bce).backward()
    return pull.item(), bce.item(), [torch.zeros(0) if x.grad is None else x.grad for x in (user, item, logits)]


@pytest.mark.parametrize("mask_same_item", [False, True])
@pytest.mark.parametrize("counts", [(7,), (5, 3), (6, 0, 2)], ids=str)
def test_values_and_gradients_are_those_of_the_global_batch(counts: tuple[int, ...], mask_same_item: bool) -> None:
    by_rank = run_world(len(counts), on_ranks, counts, mask_same_item)
    pull, bce, gradients = in_one(counts, mask_same_item)
    found = [math.fsum(rank[index] for rank in by_rank) / len(counts) for index in (0, 1)]
    assert found == pytest.approx([pull, bce], rel=1e-6)
    for index, expected in enumerate(gradients):
        # Each rank's gradient is averaged over ranks, by DistributedDataParallel or by TorchRec.
        gradient = torch.cat([rank[2][index] for rank in by_rank]).double() / len(counts)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-6)

    other_pull, _, other_gradients = in_one(counts, not mask_same_item)
    assert abs(other_pull - pull) > 1e-3
    assert (other_gradients[1] - gradients[1]).abs().max() > 1e-3
    if len(set(counts)) > 1 and min(counts):
        by_rank_gradients = in_one(counts, mask_same_item, by_rank=True)[2]
        assert all((other - own).abs().max() > 1e-3 for other, own in zip(by_rank_gradients, gradients))


def no_pair(ranks: Ranks) -> Any:
    user = torch.zeros(0, DIM, requires_grad=True)
    item = torch.zeros(0, DIM, requires_grad=True)
    keys, log_q = torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0)
    loss = contrastive(user, item, keys, log_q, 1.0, Gathering((0, 0), ranks.world), mask_same_item=False)
    bce = weighted_bce(torch.zeros(0, 2), torch.zeros(0, 2), torch.tensor(WEIGHTS), (0, 0))
    loss.backward()
    return loss.item(), bce.item(), user.grad is not None and item.grad is not None


def test_a_batch_without_any_pair_or_row_costs_nothing_and_keeps_every_parameter_in_the_graph() -> None:
    assert run_world(2, no_pair) == [(0.0, 0.0, True)] * 2
