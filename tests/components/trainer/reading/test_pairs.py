from collections.abc import Callable

import pyarrow as pa
import pytest

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import PairLoader
from thaw.components.trainer.reading.columns import DataError

MakeConfig = Callable[..., RunConfig]
WriteFile = Callable[..., DataFile]
ACTIONS = ("click", "save", "hide", None)


def engagements(first: int, num_rows: int) -> pa.Table:
    rows = range(first, first + num_rows)
    return pa.table(
        {
            "user_id": pa.array([row % 1000 for row in rows]),
            "item_id": pa.array([row * 3 % 1000 for row in rows]),
            "action": pa.array([ACTIONS[row % 4] for row in rows], pa.string()),
        }
    )


def write_days(write_file: WriteFile, sizes: tuple[int, ...] = (30, 3, 44)) -> list[DataFile]:
    return [
        write_file(engagements(sum(sizes[:day]), size), day=day, row_group_size=8) for day, size in enumerate(sizes)
    ]


def global_pairs(
    config: RunConfig, files: list[DataFile], world_size: int, start_step: int = 0
) -> list[list[tuple[int, int]]]:
    ranks = []
    for rank in range(world_size):
        steps = []
        for batch in PairLoader(config, files, rank, world_size, 0, start_step=start_step):
            assert batch.ids.keys() == ["user", "item"]
            assert batch.ids.stride() == max(1, batch.num_pairs)
            assert batch.ids.lengths().tolist() == [int(batch.num_pairs > 0)] * (2 * batch.ids.stride())
            users, items = (batch.ids[key].values().tolist() for key in ("user", "item"))
            steps.append(list(zip(users, items, strict=True)))
        ranks.append(steps)
    return [[pair for share in step for pair in share] for step in zip(*ranks, strict=True)]


def test_each_pair_whose_action_counts_comes_once_on_any_number_of_ranks(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    files = write_days(write_file)
    config = make_config(data__engagements__actions=["click", "save"])
    expected = sorted((row, row * 3 % 1000) for row in range(77) if row % 4 < 2)
    steps = global_pairs(config, files, 1)
    assert sorted(pair for step in steps for pair in step) == expected
    assert [len(step) for step in steps] == [4] * (len(expected) // 4) + [len(expected) % 4]
    assert PairLoader(config, files, 0, 1, 0).num_steps == len(steps)
    for num_workers in (0, 2):
        config = make_config(data__engagements__actions=["click", "save"], training__num_workers=num_workers)
        assert global_pairs(config, files, 2) == global_pairs(config, files, 3) == steps
        assert global_pairs(config, files, 2, start_step=5) == steps[5:]


@pytest.mark.parametrize("override", [{}, {"data__engagements__action": None}])
def test_without_actions_every_row_counts(make_config: MakeConfig, write_file: WriteFile, override: dict) -> None:
    steps = global_pairs(make_config(**override), write_days(write_file), 1)
    assert sum(len(step) for step in steps) == 77


def test_actions_that_are_dictionary_encoded_are_strings(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = engagements(0, 20)
    table = table.set_column(2, "action", table["action"].dictionary_encode())
    config = make_config(data__engagements__actions=["hide"])
    pairs = [pair for step in global_pairs(config, [write_file(table)], 1) for pair in step]
    assert sorted(pair[0] for pair in pairs) == [2, 6, 10, 14, 18]


def test_actions_of_another_type_are_refused(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = engagements(0, 4).set_column(2, "action", pa.array([[1]] * 4))
    with pytest.raises(DataError, match=r"'action' is list<.*>, and string is needed"):
        PairLoader(make_config(data__engagements__actions=["hide"]), [write_file(table)], 0, 1, 0)


def test_ids_of_pairs_follow_the_policy_of_their_table(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = engagements(0, 4)
    table = table.set_column(0, "user_id", pa.array([0, None, 2000, 3]))
    table = table.set_column(1, "item_id", pa.array([0, 1, 2, 3000]))
    file = write_file(table)
    with pytest.raises(DataError, match="feature user holds null"):
        list(PairLoader(make_config(), [file], 0, 1, 0))
    config = make_config(data__user_table__out_of_range="drop", data__item_table__out_of_range="overflow")
    loader = PairLoader(config, [file], 0, 1, 0)
    assert loader.num_steps == 1
    (batch,) = loader
    assert batch.num_pairs == 2
    assert sorted(batch.ids.values().tolist()) == [0, 0, 3, 999]
    assert loader.id_counts == {"user": {"missing": 1, "dropped": 1}, "item": {"overflowed": 1}}


def test_a_step_whose_pairs_were_all_dropped_is_a_padding_pair(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = engagements(0, 4).set_column(0, "user_id", pa.array([5000] * 4))
    (batch,) = PairLoader(make_config(data__user_table__out_of_range="drop"), [write_file(table)], 0, 1, 0)
    assert (batch.num_pairs, batch.ids.stride(), batch.ids.lengths().tolist()) == (0, 1, [0, 0])


def test_without_a_pretraining_section_the_batch_size_must_be_given(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    config = make_config(backbone={"fetch": {"uri": "somewhere"}})
    files = write_days(write_file)
    with pytest.raises(ValueError, match="batch_size"):
        PairLoader(config, files, 0, 1, 0)
    assert PairLoader(config, files, 0, 1, 0, batch_size=10).num_steps == 8
