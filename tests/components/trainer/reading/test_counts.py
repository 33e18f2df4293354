from collections.abc import Callable

import pyarrow as pa
import pytest
import torch
from reading_log import candidates_of, history_of
from test_pairs import engagements

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import count_ids
from thaw.components.trainer.reading.columns import DataError

MakeConfig = Callable[..., RunConfig]


def summed(config: RunConfig, files: list[DataFile], column: str, table: str, world_size: int, **options) -> list[int]:
    shares = [count_ids(config, files, column, table, rank, world_size, **options) for rank in range(world_size)]
    return torch.stack(shares).sum(dim=0).tolist()


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_ranks_together_count_every_id_once(
    make_config: MakeConfig, write_log: Callable[..., list[DataFile]], world_size: int
) -> None:
    files = write_log([12, 21], row_group_size=5)
    for column, table, ids_of in (
        ("candidates", "item", candidates_of),
        ("history", "item", history_of),
        ("user_id", "user", lambda request_id: [request_id]),
    ):
        expected = [0] * 1000
        for request_id in range(33):
            for row in ids_of(request_id):
                expected[row] += 1
        assert summed(make_config(), files, column, table, world_size) == expected


def test_engagements_count_by_their_action(make_config: MakeConfig, write_file: Callable[..., DataFile]) -> None:
    config = make_config(data__engagements__actions=["click"])
    files = [write_file(engagements(0, 40), row_group_size=7)]
    expected = [int(row < 40 and row % 4 == 0) for row in range(1000)]
    assert summed(config, files, "user_id", "user", 2, engagements=True) == expected
    assert sum(summed(config, files, "user_id", "user", 2)) == 40


def test_counting_follows_the_policy_of_the_table(make_config: MakeConfig, write_file: Callable[..., DataFile]) -> None:
    file = write_file(pa.table({"item_id": pa.array([0, 1, 9, None])}))
    for policy, expected in (("drop", [1, 1, 0]), ("overflow", [1, 1, 1])):
        config = make_config(data__item_table={"num_rows": 3, "out_of_range": policy})
        assert summed(config, [file], "item_id", "item", 1) == expected
    with pytest.raises(DataError, match="feature item_id holds null"):
        summed(make_config(data__item_table__num_rows=3), [file], "item_id", "item", 1)
