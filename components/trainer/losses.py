"""What is minimized. No value here depends on how the rows lie on the ranks.

Each function gives a rank its share times the world size, so that the *mean* over ranks is the loss of the global
batch: DistributedDataParallel averages the dense gradients, TorchRec's backward all-to-all divides by the world size,
and so each row weighs the same wherever it is, on ranks of unequal batches too.

Shapes:
    N  rows (candidates) of this rank    H  heads    D  width of a tower
    K  pairs of this rank                Q  pairs of all ranks
"""

import torch
import torch.nn.functional as F

from thaw.components.trainer.collectives import Gathering


def weighted_bce(
    logits_NH: torch.Tensor, labels_NH: torch.Tensor, weight_H: torch.Tensor, counts: tuple[int, ...]
) -> torch.Tensor:
    """Binary cross-entropy, heads weighted, mean over the rows of the global batch.

    Args:
        logits_NH: of this rank.
        labels_NH: 0 or 1.
        weight_H: of the heads, summing to 1.
        counts: rows of each rank.
    """
    loss_NH = F.binary_cross_entropy_with_logits(logits_NH, labels_NH, reduction="none")
    return (loss_NH * weight_H).sum() * (len(counts) / max(1, sum(counts)))


def contrastive(
    user_KD: torch.Tensor,
    item_KD: torch.Tensor,
    key_K2: torch.Tensor,
    log_q_K: torch.Tensor,
    temperature: float,
    gathering: Gathering,
    *,
    mask_same_item: bool,
) -> torch.Tensor:
    """InfoNCE from user to item over the pairs of the global batch, mean over them.

    Each pair's item is told from the items of all other pairs, each logit corrected by the log of the probability that
    its item is drawn. Another pair of the same user is no negative. Collective, forward and backward.

    Args:
        user_KD: unit vectors.
        item_KD: unit vectors.
        key_K2: user and item of each pair.
        log_q_K: log of the share of each pair's item in what the batches are drawn from.
        temperature: of the softmax.
        gathering: of the pairs; every rank has the same.
        mask_same_item: another pair of the same item is no negative either.
    """
    if not gathering.total:
        return user_KD.sum() + item_KD.sum()  # zero, and the towers keep their place in the graph on every rank
    log_q_bits_K1 = log_q_K.view(torch.int32).long()[:, None]
    item_QD, key_Q3 = gathering.rows(item_KD, torch.cat([key_K2, log_q_bits_K1], 1))
    log_q_Q = key_Q3[:, 2].int().view(torch.float32)

    logits_KQ = torch.addmm(-log_q_Q, user_KD, item_QD.T, alpha=1 / temperature)
    own_K = torch.arange(gathering.own.start, gathering.own.stop, device=user_KD.device)
    same_KQ = key_K2[:, :1] == key_Q3[:, 0]
    if mask_same_item:
        same_KQ = same_KQ | (key_K2[:, 1:] == key_Q3[:, 1])
    same_KQ[:, gathering.own].fill_diagonal_(False)
    loss = F.cross_entropy(logits_KQ.masked_fill_(same_KQ, float("-inf")), own_K, reduction="sum")
    return loss * (len(gathering.counts) / gathering.total)
