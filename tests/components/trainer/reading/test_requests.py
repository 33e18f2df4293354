import multiprocessing
import os
import select
import signal
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
import torch
from reading_log import (
    candidates_of,
    clicks_of,
    global_batches,
    hides_of,
    history_of,
    replaced,
    request_ids,
    request_table,
)

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import RequestBatch, RequestLoader
from thaw.components.trainer.reading.columns import DataError

MakeConfig = Callable[..., RunConfig]
WriteLog = Callable[..., list[DataFile]]
WriteFile = Callable[..., DataFile]


def lists(batch: RequestBatch, key: str) -> list[list[int]]:
    return [part.tolist() for part in batch.ids[key].to_dense()]


def flat(of_each: Callable[[int], list[int]], request_ids: Sequence[int]) -> list[int]:
    return [value for request_id in request_ids for value in of_each(request_id)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_value_stands_with_its_request(make_config: MakeConfig, write_log: WriteLog, num_workers: int) -> None:
    config = make_config(training__global_batch_size=7, training__shuffle_rows=40, training__num_workers=num_workers)
    seen = []
    for batch in RequestLoader(config, write_log([50, 31, 1], row_group_size=12), 0, 1, 0):
        ids = batch.request_ids.tolist()
        seen += ids
        assert (batch.num_requests, batch.ids.stride()) == (len(ids), len(ids))
        assert batch.user_ids.tolist() == [i % 1000 for i in ids]
        assert lists(batch, "user") == [[i % 1000] for i in ids]
        assert lists(batch, "history") == [history_of(i) for i in ids]
        assert lists(batch, "candidates") == [candidates_of(i) for i in ids]
        assert batch.item_ids.tolist() == flat(candidates_of, ids)
        assert batch.labels.dtype == torch.float32
        assert batch.labels.T.tolist() == [flat(clicks_of, ids), flat(hides_of, ids)]
        assert batch.num_rows == len(batch.labels)
    assert sorted(seen) == list(range(82))


def test_files_of_unequal_size_give_all_ranks_the_same_number_of_steps(
    make_config: MakeConfig, write_log: WriteLog
) -> None:
    config, files = make_config(), write_log([12, 21])
    for world_size in (1, 2, 3):
        for epoch in (0, 1):
            loaders = [RequestLoader(config, files, rank, world_size, epoch) for rank in range(world_size)]
            assert [(loader.num_steps, loader.num_rows) for loader in loaders] == [(9, 33)] * world_size
            batches = global_batches(config, files, world_size, epoch)
            assert len(batches) == 9
            assert sorted(row for batch in batches for row in batch) == list(range(33))


def test_a_rank_without_rows_gets_a_padding_request(make_config: MakeConfig, write_log: WriteLog) -> None:
    config = make_config(
        data__columns__history_action="history",
        data__num_history_actions=1000,
        data__context=[
            {"name": "kind", "column": "user_id", "kind": "categorical", "cardinality": 1000},
            {"name": "size", "column": "user_id", "kind": "numeric"},
        ],
    )
    files = write_log([1])
    ranks = [list(RequestLoader(config, files, rank, 3, 0)) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [1, 1, 1]
    assert sorted(batches[0].num_requests for batches in ranks) == [0, 0, 1]
    for batch in (batches[0] for batches in ranks if not batches[0].num_requests):
        assert batch.request_ids.tolist() == [-1]
        assert batch.num_rows == 0
        assert batch.ids.keys() == ["user", "history", "candidates"]
        assert (batch.ids.stride(), batch.ids.lengths().tolist(), batch.ids.values().tolist()) == (1, [0, 0, 0], [])
        assert batch.labels.shape == (0, 2)
        assert batch.history_action is not None and batch.history_action.shape == (0,)
        assert batch.history_age_s is None
        assert (batch.categorical["kind"].shape, batch.numeric["size"].shape) == ((1,), (1, 1))
        assert batch.ids["user"].values().dtype == torch.int64


def test_the_order_is_the_same_on_any_number_of_ranks_and_workers(make_config: MakeConfig, write_log: WriteLog) -> None:
    files = write_log([10, 7, 5], row_group_size=4)
    orders: dict[int, list] = {}
    for epoch in (0, 1):
        for world_size, num_workers in ((1, 0), (1, 2), (2, 0), (2, 2), (3, 2)):
            config = make_config(seed=7, training__num_workers=num_workers, training__num_nodes=world_size)
            batches = global_batches(config, files, world_size, epoch)
            assert sorted(row for batch in batches for row in batch) == list(range(22))
            assert batches == orders.setdefault(epoch, batches), (world_size, num_workers)
    assert orders[0] != orders[1]
    assert global_batches(make_config(seed=8), files, 1) != orders[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_iteration_is_a_whole_epoch(make_config: MakeConfig, write_log: WriteLog, num_workers: int) -> None:
    loader = RequestLoader(
        make_config(training__num_workers=num_workers, training__global_batch_size=10), write_log([40]), 0, 1, 0
    )
    first = request_ids(loader)
    assert [len(batch) for batch in first] == [10, 10, 10, 10]
    next(iter(loader))  # and goes away in mid-epoch
    assert request_ids(loader) == first


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reading_resumes_at_any_step_on_any_number_of_ranks(
    make_config: MakeConfig, write_log: WriteLog, num_workers: int
) -> None:
    config = make_config(training__num_workers=num_workers, training__shuffle_rows=12)
    files = write_log([23, 18], row_group_size=9)
    whole = global_batches(config, files, 1)
    for start_step in (0, 2, 3, 10, 11):
        ranks = [request_ids(RequestLoader(config, files, rank, 2, 0, start_step=start_step)) for rank in range(2)]
        assert [first + second for first, second in zip(*ranks, strict=True)] == whole[start_step:]
    steps = [batch.step for batch in RequestLoader(config, files, 0, 1, 0, start_step=9)]
    assert steps == [9, 10]
    with pytest.raises(ValueError, match=r"start_step 12 .* 11 steps"):
        RequestLoader(config, files, 0, 1, 0, start_step=12)


def test_batch_size_shuffle_and_limit_can_be_given(make_config: MakeConfig, write_log: WriteLog) -> None:
    config, files = make_config(training__num_lanes=1), write_log([12, 21])
    loader = RequestLoader(config, files, 0, 1, 0, shuffle=False, batch_size=8, limit_rows=20)
    assert (loader.num_steps, loader.num_rows) == (3, 20)
    assert request_ids(loader) == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]


def test_the_history_is_cut_to_its_most_recent_with_all_that_is_aligned(
    make_config: MakeConfig, write_file: WriteFile
) -> None:
    table = replaced(
        request_table(0, 3),
        history=pa.array([[5, 6, 7], None, [8]]),
        action=pa.array([[1, 0, 1], None, [2]], pa.list_(pa.int8())),
        age=pa.array([[10, 20, 30], [], [40]], pa.list_(pa.int32())),
    )
    config = make_config(
        model__history_length=2,
        data__columns__history_action="action",
        data__columns__history_age_s="age",
        data__num_history_actions=3,
    )
    (batch,) = RequestLoader(config, [write_file(table)], 0, 1, 0, shuffle=False)
    assert lists(batch, "history") == [[5, 6], [], [8]]
    assert batch.history_action is not None and batch.history_action.tolist() == [1, 0, 2]
    assert batch.history_age_s is not None and batch.history_age_s.tolist() == [10, 20, 40]


@pytest.mark.parametrize("override", [{"model__history_length": 0}, {"data__columns__history": None}])
def test_without_a_history_its_key_is_empty(make_config: MakeConfig, write_log: WriteLog, override: dict) -> None:
    for batch in RequestLoader(make_config(**override), write_log([9]), 0, 1, 0):
        assert lists(batch, "history") == [[]] * batch.num_requests
        assert lists(batch, "candidates") == [candidates_of(i) for i in batch.request_ids.tolist()]


def test_one_candidate_may_be_a_plain_column(make_config: MakeConfig, write_file: WriteFile) -> None:
    table = replaced(
        request_table(0, 5),
        candidates=pa.array(range(5)),
        click=pa.array([0, 1, 0, 1, 0], pa.int8()),
        hide=pa.array([False, False, True, True, False]),
    )
    config = make_config(training__global_batch_size=5, training__num_lanes=1)
    (batch,) = RequestLoader(config, [write_file(table)], 0, 1, 0, shuffle=False)
    assert lists(batch, "candidates") == [[0], [1], [2], [3], [4]]
    assert batch.labels.tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 0]]


def test_context_features_stand_with_their_request(make_config: MakeConfig, write_file: WriteFile) -> None:
    context = [
        {"name": "kind", "column": "kind", "kind": "categorical", "cardinality": 5},
        {"name": "score", "column": "score", "kind": "numeric"},
        {"name": "place", "column": "place", "kind": "numeric", "width": 2},
    ]
    table = replaced(
        request_table(0, 30),
        kind=pa.array([i % 5 for i in range(30)], pa.uint8()),
        score=pa.array([i / 2 for i in range(30)]),
        place=pa.array([[i, -i] for i in range(30)], pa.list_(pa.int32(), 2)),
    )
    for batch in RequestLoader(make_config(data__context=context), [write_file(table)], 0, 1, 0):
        ids = batch.request_ids
        assert batch.categorical["kind"].tolist() == (ids % 5).tolist()
        assert torch.equal(batch.numeric["score"], ids[:, None] / 2)
        assert torch.equal(batch.numeric["place"], torch.stack([ids, -ids], dim=1).float())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"click": pa.array([[0], [2], [0]])}, "'click' holds 2, and a label is 0 or 1"),
        ({"click": pa.array([[0], [-1], [0]], pa.list_(pa.int8()))}, "'click' holds -1, and a label is 0 or 1"),
        ({"click": pa.array([[0], [0.5], [0]])}, "'click' holds 0.5, and a label is 0 or 1"),
        ({"click": pa.array([[0], [float("nan")], [0]])}, "'click' holds nan, and a label is 0 or 1"),
        ({"click": pa.array([[0], [None], [0]])}, "'click' holds null, and a label is 0 or 1"),
        ({"click": pa.array([[0], [0, 1], [0]])}, "'click' has 2 values in request 1, and 'candidates' has 1"),
        ({"click": pa.array([0, 1, 0]), "candidates": pa.array([[1], [], [3]])}, "'click' has 1 values in request 1"),
        ({"request_id": pa.array([0, None, 2])}, "'request_id' holds null"),
        ({"action": pa.array([[0], [3], [0]])}, "'action' holds 3, and 0 to 2 is allowed"),
        ({"action": pa.array([[0], [], [0]])}, "'action' has 0 values in request 1, and 'history' has 1"),
        ({"age": pa.array([[0], [-5], [0]])}, "'age' holds -5, and 0 or more is allowed"),
        ({"age": pa.array([[0], [None], [0]])}, "'age' holds null"),
        ({"kind": pa.array([0, 5, 0])}, "'kind' holds 5, and 0 to 4 is allowed"),
        ({"kind": pa.array([0, None, 0])}, "'kind' holds null"),
        ({"score": pa.array([0, float("inf"), 0])}, "'score' holds inf"),
        ({"score": pa.array(["a", "b", "c"])}, "'score' is string, and float is needed"),
        ({"place": pa.array([[0.0, 1.0], [0.0], [0.0, 1.0]])}, "'place' holds a list of 1 numbers, and its width is 2"),
        ({"user_id": pa.array([[1], [2], [3]])}, r"'user_id' is list<.*int64>, and one int64 a row is needed"),
        ({"history": pa.array([1, 2, 3])}, "'history' is int64, and a list of int64 is needed"),
    ],
)
def test_what_the_configuration_does_not_allow_is_refused_with_day_file_and_value(
    make_config: MakeConfig, write_file: WriteFile, columns: dict[str, pa.Array], message: str
) -> None:
    good = {
        "request_id": pa.array([0, 1, 2]),
        "user_id": pa.array([1, 2, 3]),
        "history": pa.array([[1], [2], [3]]),
        "candidates": pa.array([[1], [2], [3]]),
        "click": pa.array([[0], [1], [0]]),
        "hide": pa.array([[0], [1], [0]]),
        "action": pa.array([[0], [1], [2]]),
        "age": pa.array([[0], [1], [2]]),
        "kind": pa.array([0, 1, 2]),
        "score": pa.array([0.0, 1.0, 2.0]),
        "place": pa.array([[0.0, 1.0]] * 3),
    }
    config = make_config(
        data__columns__history_action="action",
        data__columns__history_age_s="age",
        data__num_history_actions=3,
        data__context=[
            {"name": "kind", "column": "kind", "kind": "categorical", "cardinality": 5},
            {"name": "score", "column": "score", "kind": "numeric"},
            {"name": "place", "column": "place", "kind": "numeric", "width": 2},
        ],
    )
    assert len(list(RequestLoader(config, [write_file(pa.table(good), day=2)], 0, 1, 0))) == 1
    bad = write_file(pa.table(good | columns), "bad.parquet", day=3)
    with pytest.raises(DataError, match=message) as raised:
        list(RequestLoader(config, [bad], 0, 1, 0))
    assert "day 2026-03-04, " in str(raised.value) and bad.uri in str(raised.value)


def test_an_error_in_a_worker_names_it(make_config: MakeConfig, write_log: WriteLog, write_file: WriteFile) -> None:
    bad = write_file(replaced(request_table(0, 30), click=request_table(1, 30)["click"]), "bad.parquet", day=1)
    config = make_config(training__num_workers=2, training__shuffle=False)
    with pytest.raises(DataError, match=r"^loader worker 1: day 2026-03-02, \S*bad.parquet: column 'click'"):
        list(RequestLoader(config, [*write_log([30]), bad], 0, 1, 0))


def test_reading_by_workers_leaves_the_random_numbers_of_the_model_alone(
    make_config: MakeConfig, write_log: WriteLog
) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(RequestLoader(make_config(training__num_workers=2), write_log([12]), 0, 1, 0))
    assert torch.equal(torch.rand(3), expected)


def test_workers_die_with_their_rank(make_config: MakeConfig, write_log: WriteLog) -> None:
    files, config = write_log([40]), make_config(training__num_workers=2, training__shuffle_rows=4)
    fork = multiprocessing.get_context("fork")
    told, tell = fork.Pipe(duplex=False)

    def rank() -> None:
        batches = iter(RequestLoader(config, files, 0, 1, 0))
        next(batches)
        tell.send([child.pid for child in multiprocessing.active_children()])
        signal.pause()

    process = fork.Process(target=rank)
    process.start()
    assert told.poll(60), "the rank read nothing"
    workers = [os.pidfd_open(pid) for pid in told.recv()]
    assert len(workers) == 2
    process.kill()
    process.join()
    for worker in workers:
        assert select.select([worker], [], [], 20)[0], "a worker outlived its rank"
        os.close(worker)


def test_a_batch_moves_whole(make_config: MakeConfig, write_log: WriteLog) -> None:
    context = [{"name": "kind", "column": "user_id", "kind": "categorical", "cardinality": 1000}]
    batch = next(iter(RequestLoader(make_config(data__context=context), write_log([4]), 0, 1, 0)))
    moved = batch.to(torch.device("meta"))
    assert {moved.request_ids.device.type, moved.ids.device().type, moved.categorical["kind"].device.type} == {"meta"}
    assert (moved.step, moved.num_requests, moved.history_age_s) == (0, 4, None)
