from collections.abc import Callable

import pyarrow as pa
import pytest
from reading_log import replaced, request_table

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import MISSING_ID, RequestBatch, RequestLoader
from thaw.components.trainer.reading.columns import DataError

# Ids past the end of a table that the lookup would train as row 0: https://github.com/meta-pytorch/torchrec/issues/575
# Ids that a null in their column turns into doubles: https://github.com/apache/arrow/issues/12416

MakeConfig = Callable[..., RunConfig]
WriteFile = Callable[..., DataFile]
POLICIES = ("hash", "drop", "overflow")
COLUMNS = {
    "user": pa.array([0, 7, 3]),
    "history": pa.array([[0, 7], [], [1, 2]]),
    "candidates": pa.array([[0, 7], [3], [4]]),
}


def small_log(write_file: WriteFile, **columns: pa.Array) -> DataFile:
    labels = pa.array([[0] * len(row) for row in columns["candidates"].to_pylist()], pa.list_(pa.int8()))
    names = {"user": "user_id"}
    return write_file(
        replaced(
            request_table(0, len(labels)),
            click=labels,
            hide=labels,
            **{names.get(key, key): column for key, column in columns.items()},
        ),
        day=3,
    )


def read(config: RunConfig, file: DataFile) -> tuple[RequestBatch, dict[str, dict[str, int]]]:
    loader = RequestLoader(config, [file], 0, 1, 0, shuffle=False, batch_size=100)
    (batch,) = loader
    return batch, loader.id_counts


def lists(batch: RequestBatch, key: str) -> list[list[int]]:
    return [part.tolist() for part in batch.ids[key].to_dense()]


def with_id(feature: str, id_read: int | None) -> dict[str, pa.Array]:
    """The columns with this id at the end of the last row."""
    values = COLUMNS[feature].to_pylist()
    values[-1] = id_read if feature == "user" else [*values[-1][:-1], id_read]
    return COLUMNS | {feature: pa.array(values, COLUMNS[feature].type)}


@pytest.mark.parametrize("feature", ["user", "history", "candidates"])
@pytest.mark.parametrize("wrong", [8, 99, 2**40, -1, -5, None])
def test_an_id_that_is_no_row_is_refused_by_default(
    make_config: MakeConfig, write_file: WriteFile, feature: str, wrong: int | None
) -> None:
    config = make_config(data__user_table__num_rows=8, data__item_table__num_rows=8)
    batch, counts = read(config, small_log(write_file, **COLUMNS))
    assert lists(batch, "candidates") == [[0, 7], [3], [4]]
    assert counts == {}
    file = small_log(write_file, **with_id(feature, wrong))
    with pytest.raises(DataError) as raised:
        read(config, file)
    table = "user" if feature == "user" else "item"
    told = "null" if wrong is None else f"id {wrong},"
    rows = "" if wrong is None else "rows 0 to 7 of num_rows 8"
    for text in (f"feature {feature} holds {told}", f"table {table}", rows, "day 2026-03-04", file.uri):
        assert text in str(raised.value)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("feature", ["user", "history", "candidates"])
@pytest.mark.parametrize("wrong", [8, 99, 2**40, -1, -5, None])
def test_a_policy_maps_and_counts_it(
    make_config: MakeConfig, write_file: WriteFile, feature: str, wrong: int | None, policy: str
) -> None:
    rule = {"num_rows": 8, "out_of_range": policy}
    batch, counts = read(
        make_config(data__user_table=rule, data__item_table=rule), small_log(write_file, **with_id(feature, wrong))
    )
    outcome = (
        {"hash": "hashed", "drop": "dropped", "overflow": "overflowed"}[policy] if wrong is not None else "missing"
    )
    assert counts == {feature: {outcome: 1}}
    good, _ = read(make_config(data__user_table=rule, data__item_table=rule), small_log(write_file, **COLUMNS))
    last, last_good = lists(batch, feature)[-1], lists(good, feature)[-1]
    assert last[:-1] == last_good[:-1] or policy == "drop" or wrong is None
    if policy == "drop" or wrong is None:
        assert last == last_good[:-1]
    elif policy == "overflow":
        assert last == [*last_good[:-1], 7]
    else:
        assert len(last) == len(last_good) and 0 <= last[-1] < 8
    assert all(lists(batch, key)[:-1] == lists(good, key)[:-1] for key in COLUMNS)


def test_hashing_spreads_over_the_table_and_keeps_equal_ids_equal(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    ids = [*range(4000), *range(2**60, 2**60 + 4000), 0]
    columns = {"user": pa.array([0]), "history": pa.array([[]], pa.list_(pa.int64())), "candidates": pa.array([ids])}
    config = make_config(data__item_table={"num_rows": 16, "out_of_range": "hash"})
    batch, counts = read(config, small_log(write_file, **columns))
    rows = batch.ids["candidates"].values()
    assert (batch.item_ids.tolist(), counts) == (ids, {"candidates": {"hashed": 8000 - 16}})
    assert rows[0] == rows[-1]
    assert all(400 < count < 600 for count in rows.bincount(minlength=16).tolist())  # 500 on average, sd 22


def test_a_dropped_candidate_takes_its_labels_along_and_a_dropped_item_its_action(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    table = pa.table(
        {
            "request_id": pa.array([0, 1]),
            "user_id": pa.array([1, None]),
            "history": pa.array([[1, 9, 2], [9]]),
            "action": pa.array([[0, 1, 2], [1]]),
            "candidates": pa.array([[9, 3, 4], [5]]),
            "click": pa.array([[1, 0, 1], [0]]),
            "hide": pa.array([[0, 0, 1], [1]]),
        }
    )
    rule = {"num_rows": 8, "out_of_range": "drop"}
    config = make_config(
        data__user_table=rule,
        data__item_table=rule,
        data__columns__history_action="action",
        data__num_history_actions=3,
    )
    batch, counts = read(config, write_file(table))
    assert lists(batch, "history") == [[1, 2], []]
    assert batch.history_action is not None and batch.history_action.tolist() == [0, 2]
    assert lists(batch, "candidates") == [[3, 4], [5]]
    assert batch.item_ids.tolist() == [3, 4, 5]
    assert batch.labels.tolist() == [[0, 0], [1, 1], [0, 1]]
    assert lists(batch, "user") == [[1], []]
    assert batch.num_rows == 3
    assert counts == {"candidates": {"dropped": 1}, "history": {"dropped": 2}, "user": {"missing": 1}}


def test_64_bit_ids_stay_exact_beside_a_null(make_config: MakeConfig, write_file: WriteFile) -> None:
    users = [9007199254740993, 9007199254740992, None, 9223372036854775807]
    columns = {
        "user": pa.array(users),
        "history": pa.array([[user] for user in users]),
        "candidates": pa.array([[user] if user else [] for user in users]),
    }
    present = [user for user in users if user is not None]
    for rule in ({"num_rows": 2**62, "out_of_range": "hash"}, {"num_rows": 1000, "out_of_range": "overflow"}):
        batch, counts = read(
            make_config(data__user_table=rule, data__item_table=rule), small_log(write_file, **columns)
        )
        assert batch.user_ids.tolist() == [MISSING_ID if user is None else user for user in users]
        assert batch.item_ids.tolist() == present
        assert counts["user"]["missing"] == counts["history"]["missing"] == 1
        rows = {key: set(batch.ids[key].values().tolist()) for key in COLUMNS}
        # Hashed into a table so large that no two of three meet.
        assert all(len(of_feature) == (3 if rule["out_of_range"] == "hash" else 1) for of_feature in rows.values())


def test_counts_leave_out_what_a_resumed_or_limited_epoch_does_not_read(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    table = replaced(request_table(0, 40), user_id=pa.array([5000] * 40))
    rule = {"num_rows": 10, "out_of_range": "overflow"}
    file = write_file(table, row_group_size=7)
    for num_workers in (0, 2):
        config = make_config(data__user_table=rule, training__num_workers=num_workers, training__num_nodes=2)
        for options, expected in (({}, 40), ({"start_step": 6}, 16), ({"limit_rows": 13}, 13)):
            loaders = [RequestLoader(config, [file], rank, 2, 0, **options) for rank in range(2)]
            assert sum(batch.num_requests for loader in loaders for batch in loader) == expected
            assert sum(loader.id_counts["user"]["overflowed"] for loader in loaders) == expected
