import numpy as np
import pytest

from thaw.components.trainer.reading.lanes import Block, EpochOrder


def rows_of(block: Block, group_starts: np.ndarray) -> list[list[int]]:
    """Rows of each step of a block, counted through all row groups."""
    read = np.concatenate(
        [np.empty(0, int)]
        + [np.arange(piece.start, piece.stop) + group_starts[piece.row_group] for piece in block.pieces]
    )
    used = read if block.used is None else read[block.used]
    ends = np.cumsum(block.rows_per_step)
    return [used[block.order][end - num : end].tolist() for end, num in zip(ends, block.rows_per_step)]


def steps_of(order: EpochOrder, sizes: list[int], rank: int, world_size: int, start_step: int = 0) -> list[list[int]]:
    group_starts = np.concatenate([[0], np.cumsum(sizes)])
    lanes = order.lanes(rank, world_size)
    blocks = range(order.block_of(start_step), order.num_blocks)
    return [rows for block in blocks for rows in rows_of(order.block(block, lanes, start_step), group_starts)]


@pytest.mark.parametrize("seed", range(150))
def test_any_sizes_ranks_and_start_give_each_row_once_in_one_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = random.integers(0, random.integers(1, 40), random.integers(1, 12)).tolist()
    order = EpochOrder(
        sizes,
        seed=seed,
        epoch=int(random.integers(0, 3)),
        batch_size=int(random.integers(1, 20)),
        num_lanes=int(random.integers(1, 10)),
        shuffle_rows=int(random.integers(1, 80)),
        shuffle=bool(random.integers(0, 4)),
    )
    alone = steps_of(order, sizes, 0, 1)
    assert sorted(row for step in alone for row in step) == list(range(sum(sizes)))
    assert [len(step) for step in alone[:-1]] == [order.batch_size] * (order.num_steps - 1)
    assert len(alone) == order.num_steps

    world_size, start_step = int(random.integers(1, 6)), int(random.integers(0, order.num_steps + 1))
    ranks = [steps_of(order, sizes, rank, world_size, start_step) for rank in range(world_size)]
    together = [[row for share in step for row in share] for step in zip(*ranks, strict=True)]
    assert together == alone[start_step:]

    for rank in range(world_size):
        num_workers = int(random.integers(1, 4))
        shares = [order.lanes(rank, world_size, worker, num_workers) for worker in range(num_workers)]
        assert [lane for share in shares for lane in share] == list(order.lanes(rank, world_size))


def test_without_shuffle_the_order_goes_round_the_lanes() -> None:
    order = EpochOrder(
        [4, 7], seed=0, epoch=0, batch_size=3, num_lanes=3, shuffle_rows=100, shuffle=False, limit_rows=None
    )
    # Lanes of rows 0..3, 4..7, 8..10; position p is row p // 3 of lane p % 3.
    assert steps_of(order, [4, 7], 0, 1) == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]


def test_a_limit_is_a_prefix_of_the_order() -> None:
    def order(limit_rows: int | None) -> EpochOrder:
        return EpochOrder(
            [30, 20, 50],
            seed=3,
            epoch=1,
            batch_size=8,
            num_lanes=4,
            shuffle_rows=32,
            shuffle=True,
            limit_rows=limit_rows,
        )

    limited, whole = (steps_of(order(limit), [30, 20, 50], 0, 1) for limit in (37, None))
    assert limited[:4] == whole[:4]
    assert [len(step) for step in limited] == [8, 8, 8, 8, 5]
    assert set(limited[4]) < set(whole[4])
    assert order(1000).num_rows == 100


def test_seed_and_epoch_alone_decide_the_order() -> None:
    def steps(seed: int, epoch: int) -> list[list[int]]:
        sizes = [10, 7, 5]
        order = EpochOrder(
            sizes, seed=seed, epoch=epoch, batch_size=4, num_lanes=2, shuffle_rows=16, shuffle=True, limit_rows=None
        )
        return steps_of(order, sizes, 0, 1)

    assert steps(7, 0) == steps(7, 0)
    assert steps(7, 1) == steps(7, 1)
    assert len({str(steps(seed, epoch)) for seed in (7, 8) for epoch in (0, 1)}) == 4


def test_a_row_moves_inside_its_block_alone() -> None:
    sizes = [1000]
    order = EpochOrder(sizes, seed=0, epoch=0, batch_size=10, num_lanes=2, shuffle_rows=100, shuffle=True)
    steps = steps_of(order, sizes, 0, 1)
    for block in range(10):
        rows = sorted(row for step in steps[block * 10 : (block + 1) * 10] for row in step)
        assert rows == [*range(block * 50, (block + 1) * 50), *range(500 + block * 50, 500 + (block + 1) * 50)]


def test_no_rows_make_no_steps() -> None:
    order = EpochOrder([0, 0], seed=0, epoch=0, batch_size=4, num_lanes=2, shuffle_rows=16, shuffle=True)
    assert (order.num_rows, order.num_steps, order.num_blocks) == (0, 0, 0)
    assert EpochOrder([], seed=0, epoch=0, batch_size=4, num_lanes=2, shuffle_rows=16, shuffle=True).num_steps == 0
