"""The order of the links, which is what staleness and a CUDA host's freedom rest on."""

from typing import Any

import torch
from two_ranks import Groups, SmallModel, make_batch, results, shard

NUM_BATCHES = 6


def links(groups: Groups) -> list[tuple[str, int]]:
    """Every link that the chain ran, with the batch that it worked on."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward
    from thaw.components.trainer.semi_sync.links import Links

    ran: list[tuple[str, int]] = []

    def told(name: str) -> Any:
        link = getattr(Links, name)

        def run(self: Links, of: Any) -> Any:
            ran.append((name, of.batch))
            return link(self, of)

        return run

    for name in ("agree", "start", "deal", "update", "look_up"):
        setattr(Links, name, told(name))
    model = SmallModel(groups, tables=shard(groups.sparse))
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    with PrefetchingForward(model, optimizer, group=groups.sparse) as forward:
        for batch in LookaheadLoader([make_batch(n, groups.rank) for n in range(NUM_BATCHES)], forward):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    return ran


def test_ids_go_out_before_the_gradients_and_rows_are_looked_up_behind_them() -> None:
    for ran in results(links):
        for number in range(1, NUM_BATCHES - 2):
            begin = ran.index(("agree", number - 1))
            assert ran[begin : begin + 5] == [
                ("agree", number - 1),
                ("deal", number + 1),
                ("start", number + 2),
                ("update", number - 1),
                ("look_up", number + 1),
            ]
        assert [batch for name, batch in ran if name == "update" and batch >= 0] == list(range(NUM_BATCHES))
        assert [batch for name, batch in ran if name == "look_up"] == list(range(NUM_BATCHES))
