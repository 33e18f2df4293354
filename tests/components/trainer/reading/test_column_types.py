import itertools
from collections.abc import Callable

import pyarrow as pa
import pytest
from reading_log import candidates_of, clicks_of, history_of, replaced, request_table

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestLoader
from thaw.components.trainer.reading.columns import DataError

# Days whose files give a column another type: https://github.com/apache/arrow/issues/37068

MakeConfig = Callable[..., RunConfig]
WriteFile = Callable[..., DataFile]
LARGE_USER = 2**40 + 1


def typed_days() -> list[pa.Table]:
    """Ten requests a day, the same kind of content in types of their own."""
    days = [request_table(10 * day, 10) for day in range(9)]
    users = days[1]["user_id"].to_pylist()
    return [
        replaced(days[0], user_id=days[0]["user_id"].cast(pa.int32())),
        replaced(days[1], user_id=pa.array([LARGE_USER, *users[1:]])),
        days[2].select(list(reversed(days[2].column_names))),
        replaced(days[3], history=pa.nulls(10)),
        replaced(days[4], surprise=pa.array([{"a": 1}] * 10)),
        replaced(
            days[5],
            click=days[5]["click"].cast(pa.list_(pa.int64())),
            hide=days[5]["hide"].cast(pa.list_(pa.float32())),
        ),
        replaced(days[6], history=days[6]["history"].cast(pa.large_list(pa.uint16()))),
        replaced(days[7], user_id=days[7]["user_id"].cast(pa.uint64())),
        replaced(days[8], click=days[8]["click"].cast(pa.list_(pa.bool_()))),
    ]


def test_each_day_gives_its_values_whatever_its_types_and_the_order_of_days(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    files = [write_file(table, day=day) for day, table in enumerate(typed_days())]
    config = make_config(data__user_table={"num_rows": 1000, "out_of_range": "overflow"})
    orders = [files, files[::-1], [files[place] for place in (3, 6, 0, 8, 1, 5, 7, 2, 4)]]
    for order, shuffle in itertools.product(orders, (False, True)):
        seen = []
        for batch in RequestLoader(config, order, 0, 1, 0, shuffle=shuffle):
            histories, candidates, labels = batch.ids["history"].to_dense(), batch.ids["candidates"].to_dense(), 0
            for place, request_id in enumerate(batch.request_ids.tolist()):
                seen.append(request_id)
                assert histories[place].tolist() == ([] if request_id // 10 == 3 else history_of(request_id))
                assert candidates[place].tolist() == candidates_of(request_id)
                user = LARGE_USER if request_id == 10 else request_id
                assert batch.user_ids[place] == user
                clicks = clicks_of(request_id)
                assert batch.labels[labels : labels + len(clicks), 0].tolist() == clicks
                labels += len(clicks)
        assert sorted(seen) == list(range(90))


@pytest.mark.parametrize("column", ["user_id", "history", "click", "request_id"])
def test_a_day_without_a_column_is_refused(make_config: MakeConfig, write_file: WriteFile, column: str) -> None:
    files = [
        write_file(request_table(0, 10)),
        write_file(request_table(10, 10).drop_columns([column]), "part.parquet", day=1),
    ]
    for order in (files, files[::-1]):
        with pytest.raises(DataError, match=f"day 2026-03-02, {files[1].uri} has no column '{column}'"):
            list(RequestLoader(make_config(), order, 0, 1, 0))


@pytest.mark.parametrize(
    ("column", "values", "types"),
    [
        ("user_id", pa.array([1.0] * 10), "is double, and int64 is needed"),
        ("user_id", pa.array(["a"] * 10), "is string, and int64 is needed"),
        ("history", pa.array([[1.0]] * 10), r"is list<\w+: double>, and list<int64> is needed"),
        ("candidates", pa.array([[1.5]] * 10), r"is list<\w+: double>, and list<int64> is needed"),
        ("user_id", pa.array([2**63 + 5] * 10, pa.uint64()), f"is uint64 and holds {2**63 + 5}, more than int64 can"),
        (
            "history",
            pa.array([[2**63]] * 10, pa.list_(pa.uint64())),
            rf"is list<.*uint64> and holds {2**63}, more than",
        ),
    ],
)
def test_ids_of_another_kind_are_refused_with_both_types(
    make_config: MakeConfig, write_file: WriteFile, column: str, values: pa.Array, types: str
) -> None:
    file = write_file(replaced(request_table(0, 10), **{column: values}), day=4)
    with pytest.raises(DataError, match=rf"day 2026-03-05, {file.uri}: column '{column}' {types}"):
        list(RequestLoader(make_config(), [file], 0, 1, 0))


def test_null_lists_and_fixed_size_lists_are_lists(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = replaced(
        request_table(0, 3),
        history=pa.array([None, [5], None]),
        candidates=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int64(), 2)),
        click=pa.array([[0, 1], [1, 0], [1, 1]], pa.list_(pa.int8(), 2)),
        hide=pa.array([[0, 1]] * 3),
    )
    (batch,) = RequestLoader(make_config(), [write_file(table)], 0, 1, 0, shuffle=False)
    assert [part.tolist() for part in batch.ids["history"].to_dense()] == [[], [5], []]
    assert batch.item_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.labels[:, 0].tolist() == [0, 1, 1, 0, 1, 1]
