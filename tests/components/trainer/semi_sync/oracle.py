"""A slow and obvious simulation of the pipeline in one process: dense, float64, no TorchRec in it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from two_ranks import (
    DIM,
    FEATURES,
    KEYS,
    NUM_ROWS,
    Batch,
    Groups,
    Scorer,
    SmallModel,
    initial_table,
    make_batch,
    rows_here,
    shard,
)

NUM_BATCHES = 9
DENSE_LR = 0.5
MIXED = {"t0": "0", "t1": "row_wise", "t2": "row_wise"}
ROW_WISE = dict.fromkeys(NUM_ROWS, "row_wise")
ONE_OWNER = dict.fromkeys(NUM_ROWS, "0")


@dataclass(frozen=True)
class Case:
    kind: str
    sharding: str
    optimizer: str = "sgd"
    staleness: int = 1
    mean: bool = False

    @property
    def lr(self) -> float:
        return 2.0 if self.optimizer == "sgd" else 0.3

    def batch(self, number: int, rank: int) -> Batch:
        is_pooled_row_wise = self.kind != "sequence" and self.sharding not in ("table_wise", "one_owner")
        size = 6 - number % 3 if is_pooled_row_wise else 6 - number % 3 - rank
        longest = 0 if number == 4 else 3
        return make_batch(number, rank, size, longest=longest, weighted=self.kind == "weighted")


SHARDINGS = {"table_wise": {}, "row_wise": ROW_WISE, "mixed": MIXED, "one_owner": ONE_OWNER}
CASES = [
    Case("pooled", "table_wise"),
    Case("pooled", "row_wise"),
    Case("pooled", "one_owner"),
    Case("pooled", "mixed", "adagrad"),
    Case("pooled", "mixed", staleness=0),
    Case("pooled", "table_wise", mean=True),
    Case("weighted", "table_wise"),
    Case("sequence", "table_wise"),
    Case("sequence", "row_wise"),
    Case("sequence", "mixed", "adagrad"),
    Case("sequence", "mixed", staleness=0),
    Case("sequence", "one_owner", "adagrad", staleness=0),
]


def train(groups: Groups, cases: list[Case]) -> dict[Case, Any]:
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    said = {}
    for case in cases:
        kinds, device = SHARDINGS[case.sharding], groups.device
        sharded = shard(groups.sparse, case.kind, kinds, case.optimizer, case.lr, mean=case.mean, device=device)
        model = SmallModel(groups, tables=sharded)
        optimizer = torch.optim.SGD(model.dense.parameters(), lr=DENSE_LR)
        forward = PrefetchingForward(model, optimizer, group=groups.sparse, staleness=case.staleness, device=device)
        losses = []
        batches = [case.batch(number, groups.rank) for number in range(NUM_BATCHES)]
        for batch in LookaheadLoader(batches, forward, device):
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        forward.close()
        losses = [loss.item() for loss in losses]
        said[case] = losses, rows_here(sharded), [figures.staleness for figures in forward.figures.done]
    return said


def simulate(case: Case, staleness: int, world: int) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Losses by rank and batch, and the tables in the end.

    With E_k the tables after k updates: batch B reads E_max(B - staleness, 0), and its gradient is applied to E_B.
    """
    tables = {name: initial_table(name).double() for name in NUM_ROWS}
    slots = {name: torch.zeros(rows, dtype=torch.float64) for name, rows in NUM_ROWS.items()}
    table_of = {feature: table for table, features in FEATURES.items() for feature in features}
    history = [tables]
    scorer = Scorer().double()
    losses: list[list[float]] = [[] for _ in range(world)]
    for number in range(NUM_BATCHES):
        read = {name: rows.clone().requires_grad_() for name, rows in history[max(number - staleness, 0)].items()}
        total = torch.zeros((), dtype=torch.float64)
        for rank in range(world):
            batch = case.batch(number, rank)
            parts = []
            for key in KEYS:
                jagged = batch.kjt[key]
                sample = torch.repeat_interleave(jagged.lengths().long())
                rows = read[table_of[key]][jagged.values()]
                if case.kind == "sequence":
                    rows = torch.tanh(rows)
                if case.kind == "weighted":
                    rows = rows * jagged.weights().double()[:, None]
                sums = torch.zeros(len(batch.label), DIM, dtype=torch.float64).index_add(0, sample, rows)
                parts.append(sums / jagged.lengths().clamp(min=1)[:, None] if case.mean else sums)
            logit = scorer(torch.cat([*parts, batch.dense.double()], 1))
            loss = nn.functional.binary_cross_entropy_with_logits(logit, batch.label.double())
            losses[rank].append(loss.item())
            total = total + loss / world
        scorer.zero_grad()
        total.backward()
        updated = {}
        for name, rows in history[-1].items():
            gradient = read[name].grad
            assert gradient is not None
            step = case.lr * gradient
            if case.optimizer == "adagrad":
                slots[name] = slots[name] + gradient.square().mean(1)
                step = step / (slots[name].sqrt() + 1e-8)[:, None]
            updated[name] = rows - step
        history.append(updated)
        with torch.no_grad():
            for parameter in scorer.parameters():
                parameter -= DENSE_LR * parameter.grad
    return losses, history[-1]


def distance(case: Case, trained: list[dict[Case, Any]], staleness: int) -> tuple[float, float]:
    """The largest difference of a loss, and of an entry of a table, from those of the simulation."""
    world = len(trained)
    losses, tables = simulate(case, staleness, world)
    loss = max(
        abs(ours - theirs) for rank in range(world) for ours, theirs in zip(trained[rank][case][0], losses[rank])
    )
    table = max(
        float((tables[name][start : start + len(rows)] - rows.double()).abs().max())
        for rank in range(world)
        for name, start, rows in trained[rank][case][1]
        if len(rows)
    )
    return loss, table
