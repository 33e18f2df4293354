"""The sparse half on real ranks: placement, initial rows, freezing, the learning rate."""

from typing import Any

import pytest
import torch
from torchrec import KeyedJaggedTensor
from worlds import Ranks, run_world

from thaw.components.trainer.checksums import checksums
from thaw.components.trainer.initial_rows import BLOCK_ROWS, initial_rows
from thaw.components.trainer.sharding import Piece, check_owners
from thaw.components.trainer.tables import ShardedTables, TableOptimizer, TableSpec

SPECS = (TableSpec("user", 8, ("user",)), TableSpec("item", 9, ("history", "candidates")))


def build(ranks: Ranks, sharding: dict[str, str], frozen: tuple[str, ...] = (), **optimizer: Any) -> ShardedTables:
    return ShardedTables(
        SPECS,
        dim=4,
        optimizer=TableOptimizer(**{"kind": "rowwise_adagrad", "lr": 0.5, **optimizer}),
        seed=3,
        group=ranks.sparse,
        device=ranks.device,
        sharding=sharding,
        frozen=frozen,
    )


def row_1_of_each() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        ["user", "history", "candidates"], torch.tensor([1, 1, 2]), lengths=torch.tensor([1, 1, 1])
    )


def whole(tables: ShardedTables, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Every table, slot after slot, on every rank."""
    shapes = {f"table/{spec.name}": (spec.num_rows, 4) for spec in SPECS}
    shapes |= {f"table/{spec.name}/momentum1": (spec.num_rows,) for spec in SPECS}
    full = {name: torch.zeros(shape) for name, shape in shapes.items()}
    for name, tensor in tables.tensors().items():
        for shard in tensor.local_shards():
            start = shard.metadata.shard_offsets[0]
            full[name][start : start + len(shard.tensor)] = shard.tensor
    for tensor in full.values():
        torch.distributed.all_reduce(tensor, group=ranks.world)
    return full


def train(tables: ShardedTables, steps: int) -> int:
    """Steps of a loss whose gradient is 1 everywhere; how many exchanges of rows and gradients the last one made."""
    scale = torch.ones((), requires_grad=True)
    for _ in range(steps):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            rows = tables(row_1_of_each())
            (sum(tensor.values().sum() for tensor in rows.values()) * scale).backward()
    assert scale.grad is not None and scale.grad != 0
    return sum(event.count for event in profile.key_averages() if event.key == "c10d::alltoall_base_")


PLACEMENTS = {
    "table-wise": {"user": "table_wise", "item": "table_wise"},
    "row-wise": {"user": "row_wise", "item": "row_wise"},
    "mixed": {"user": "row_wise", "item": "table_wise"},
    "planned": {},
    "planned in part": {"user": "row_wise"},
}


def place(ranks: Ranks) -> Any:
    found = {}
    for name, sharding in PLACEMENTS.items():
        tables = build(ranks, sharding)
        sums = checksums(tables.tensors(), ranks.world)
        held = [(table, shard.metadata.shard_offsets[0], len(shard.tensor)) for table, shard in tables.shards()]
        found[name] = (sums, held, whole(tables, ranks)["table/item"])
    return found


def test_initial_rows_and_checksums_are_the_same_under_any_sharding_on_any_number_of_ranks() -> None:
    worlds = {size: run_world(size, place) for size in (1, 2, 3)}
    expected = initial_rows(3, "item", 0, 9, 4)
    seen = {str(sums) for world in worlds.values() for rank in world for sums, _, _ in rank.values()}
    assert len(seen) == 1
    for world in worlds.values():
        for rank in world:
            for _, _, item in rank.values():
                torch.testing.assert_close(item, expected, rtol=0, atol=0)
    two = worlds[2]
    assert [rank["table-wise"][1] for rank in two] == [[("user", 0, 8)], [("item", 0, 9)]]
    assert [rank["row-wise"][1] for rank in two] == [[("user", 0, 4), ("item", 0, 5)], [("user", 4, 4), ("item", 5, 4)]]


def test_initial_rows_differ_by_seed_and_table_and_agree_across_blocks() -> None:
    whole_table = initial_rows(0, "user", 0, 2 * BLOCK_ROWS + 7, 2)
    middle = initial_rows(0, "user", BLOCK_ROWS - 3, BLOCK_ROWS + 5, 2)
    assert torch.equal(middle, whole_table[BLOCK_ROWS - 3 : 2 * BLOCK_ROWS + 2])
    assert initial_rows(0, "user", 5, 0, 2).shape == (0, 2)
    assert len({float(initial_rows(*key, 0, 1, 1)) for key in ((0, "user"), (1, "user"), (0, "item"))}) == 3
    assert whole_table.std().item() == pytest.approx(0.5 / 2**0.5, rel=0.05)


def spoil(ranks: Ranks) -> list[str]:
    """Checksums of the item table as it is, and after changes that a sum over its values would not see."""
    tables = build(ranks, PLACEMENTS["table-wise"])
    found = []
    for change in ("none", "one bit", "two rows swapped", "minus zero"):
        for table, shard in tables.shards():
            rows = shard.tensor
            if table == "item":
                rows.copy_(initial_rows(3, "item", 0, 9, 4))
                rows[7, 2] = 0.0
                if change == "one bit":
                    rows.view(torch.int32)[8, 3] ^= 1
                if change == "two rows swapped":
                    rows[[0, 1]] = rows[[1, 0]]
                if change == "minus zero":
                    rows[7, 2] = -0.0
        found.append(checksums(tables.tensors(), ranks.world)["table/item"])
    return found


def test_a_checksum_tells_any_two_tables_apart() -> None:
    for found in run_world(2, spoil):
        assert len(set(found)) == 4


def freeze_then_thaw(ranks: Ranks, sharding: dict[str, str]) -> Any:
    frozen = build(ranks, sharding, frozen=("user", "item"))
    before, sums_before = whole(frozen, ranks), checksums(frozen.tensors(), ranks.world)
    exchanges_frozen = train(frozen, 3)
    after, sums_after = whole(frozen, ranks), checksums(frozen.tensors(), ranks.world)

    thawed = build(ranks, sharding)
    for name, tensor in thawed.tensors().items():
        for shard in tensor.local_shards():
            start = shard.metadata.shard_offsets[0]
            shard.tensor.copy_(after[name][start : start + len(shard.tensor)])
    exchanges_thawed = train(thawed, 1)
    return (before, after, whole(thawed, ranks)), (sums_before, sums_after), (exchanges_frozen, exchanges_thawed)


# https://github.com/meta-pytorch/torchrec/issues/1990 , https://github.com/meta-pytorch/torchrec/issues/2908
@pytest.mark.parametrize("placement", ["table-wise", "row-wise"])
def test_frozen_steps_leave_rows_and_slots_alone_and_the_first_step_after_them_is_a_first_step(placement: str) -> None:
    for (before, after, thawed), (sums_before, sums_after), exchanges in run_world(
        2, freeze_then_thaw, PLACEMENTS[placement]
    ):
        assert sums_before == sums_after
        for name in before:
            assert torch.equal(before[name], after[name]), name
            assert not name.endswith("momentum1") or not after[name].any()
        for table in ("user", "item"):
            moved = after[f"table/{table}"] - thawed[f"table/{table}"]
            # Both ranks look row 1 up: the mean over ranks of its gradient is 1, and 0.5 x 1 / sqrt(1) is the step.
            torch.testing.assert_close(moved[1], torch.full((4,), 0.5), rtol=0, atol=1e-5)
        # Splits, lengths, ids and rows; and the gradients of rows that train.
        assert exchanges == (4, 5)


def freeze_one(ranks: Ranks) -> Any:
    tables = build(ranks, PLACEMENTS["table-wise"], frozen=("user",))
    before = whole(tables, ranks)
    train(tables, 2)
    return before, whole(tables, ranks), [spec.name for spec in SPECS if spec.name in tables.frozen]


def test_one_table_can_be_frozen_while_the_other_trains() -> None:
    for before, after, frozen in run_world(2, freeze_one):
        assert frozen == ["user"]
        for name in ("table/user", "table/user/momentum1"):
            assert torch.equal(before[name], after[name])
        assert not torch.equal(before["table/item"], after["table/item"])
        untouched = [0, *range(3, 9)]
        assert torch.equal(before["table/item"][untouched], after["table/item"][untouched])


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ([[Piece("user", 0, 5)], [Piece("user", 5, 3)]], None),
        ([[], [Piece("user", 0, 8)]], None),
        ([[Piece("user", 0, 5)], [Piece("user", 6, 2)]], "table user: rows 5 to 5 have no owner"),
        ([[Piece("user", 0, 5)], []], "table user: rows 5 to 7 have no owner"),
        ([[], []], "table user: rows 0 to 7 have no owner"),
        ([[Piece("user", 0, 5)], [Piece("user", 3, 5)]], "table user: rows 3 to 4 have two owners, ranks 0 and 1"),
        ([[Piece("user", 0, 8)], [Piece("user", 0, 8)]], "table user: rows 0 to 7 have two owners, ranks 0 and 1"),
    ],
)
def test_every_row_has_exactly_one_owner_or_the_job_does_not_start(
    held: list[list[Piece]], complaint: str | None
) -> None:
    if complaint is None:
        check_owners(held, {"user": 8})
    else:
        with pytest.raises(RuntimeError, match=complaint):
            check_owners(held, {"user": 8})
