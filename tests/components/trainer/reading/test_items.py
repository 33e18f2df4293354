from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from thaw.components.config import RunConfig
from thaw.components.select_window.window import DataFile
from thaw.components.trainer.reading import load_items
from thaw.components.trainer.reading.columns import DataError

MakeConfig = Callable[..., RunConfig]
WriteFile = Callable[..., DataFile]


def item_table(**columns: Any) -> pa.Table:
    good = {
        "item_id": [3, 0, 5],
        "patches": [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], []],
        "tokens": [[7], [1, 2, 3], None],
    }
    return pa.table({name: pa.array(values) for name, values in (good | columns).items()})


@pytest.fixture
def config(make_config: MakeConfig) -> RunConfig:
    return make_config(**content(num_rows=6))


def content(**table: Any) -> dict[str, Any]:
    return {
        "data__item_table": table,
        "data__items": {"patches": {"num": 2, "width": 2}, "tokens": {"max_length": 3, "vocabulary_size": 10}},
    }


def test_content_stands_in_the_row_of_its_item(config: RunConfig, write_file: WriteFile) -> None:
    items = load_items(config, [write_file(item_table(), row_group_size=2)])
    assert items.present.tolist() == [True, False, False, True, False, True]
    assert items.patches is not None and items.tokens is not None and items.token_mask is not None
    assert items.patches.shape == (6, 2, 2)
    assert items.patches[3].tolist() == [[1, 2], [3, 4]]
    assert items.patches[0].tolist() == [[5, 6], [7, 8]]
    assert items.patches[[1, 2, 4, 5]].count_nonzero() == 0
    assert items.tokens.tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 0], [7, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert items.token_mask.sum(dim=1).tolist() == [3, 0, 0, 1, 0, 0]


def test_items_may_have_either_kind_of_content(make_config: MakeConfig, write_file: WriteFile) -> None:
    file = write_file(item_table())
    only_tokens = content(num_rows=6) | {"data__items": {"tokens": {"max_length": 3, "vocabulary_size": 10}}}
    items = load_items(make_config(**only_tokens), [file])
    assert items.patches is None and items.tokens is not None
    only_patches = content(num_rows=6) | {"data__items": {"patches": {"num": 4, "width": 1}}}
    items = load_items(make_config(**only_patches), [file])
    assert items.tokens is None and items.token_mask is None
    assert items.patches is not None and items.patches[3].tolist() == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": [3, 0, 6]}, "holds id 6, which is no row of table item"),
        ({"item_id": [3, 0, 3]}, "'item_id' holds item 3, which has a row already"),
        ({"patches": [[1.0], [], []]}, "'patches' holds a list of 1 values, and 4 is allowed"),
        ({"patches": [[1.0, 2.0, 3.0, float("nan")], [], []]}, "'patches' holds nan"),
        ({"patches": [[1.0, 2.0, 3.0, None], [], []]}, "'patches' holds null"),
        ({"tokens": [[1, 2, 3, 4], [], []]}, "'tokens' holds a list of 4 values, and at most 3 is allowed"),
        ({"tokens": [[10], [], []]}, "'tokens' holds 10, and 0 to 9 is allowed"),
        ({"tokens": [[-1], [], []]}, "'tokens' holds -1, and 0 to 9 is allowed"),
        ({"tokens": [[1.0], [], []]}, "'tokens' is list<.*double>, and list<int64> is needed"),
    ],
)
def test_wrong_content_is_refused(config: RunConfig, write_file: WriteFile, columns: dict, message: str) -> None:
    file = write_file(item_table(**columns))
    with pytest.raises(DataError, match=message):
        load_items(config, [file])


def test_an_item_in_two_files_is_refused(config: RunConfig, write_file: WriteFile) -> None:
    files = [write_file(item_table()), write_file(item_table(item_id=[1, 2, 5]), "1.parquet")]
    with pytest.raises(DataError, match=r"1.parquet: column 'item_id' holds item 5, which has a row already"):
        load_items(config, files)


def test_content_of_ids_that_are_no_row_follows_the_policy(make_config: MakeConfig, write_file: WriteFile) -> None:
    file = write_file(item_table(item_id=[3, 70, None]))
    for policy in ("drop", "overflow"):
        items = load_items(make_config(**content(num_rows=6, out_of_range=policy)), [file])
        assert items.present.tolist() == [False, False, False, True, False, False]
    items = load_items(make_config(**content(num_rows=1, out_of_range="hash")), [file])
    assert items.patches is not None and items.patches[0].tolist() == [[1, 2], [3, 4]]
