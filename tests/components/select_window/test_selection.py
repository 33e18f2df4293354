import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from day_folders import COLUMNS, DATE, day_uri, parquet, write_days

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.select_window.selection import WindowError, select
from thaw.components.select_window.window import Window, read_window

Configure = Callable[..., RunConfig]
local = pytest.mark.parametrize("store_uri", ["local"], indirect=True)


def day(offset: int) -> datetime.date:
    return DATE + datetime.timedelta(days=offset)


def num_rows(window: Window) -> int:
    return sum(file.num_rows for file in window.training)


def add(requests_uri: str, offset: int, *names: str, content: bytes = b"x") -> None:
    for name in names:
        storage.write_bytes(storage.join(day_uri(requests_uri, offset), name), content)


def remove(uri: str) -> None:
    filesystem, path = storage.open_filesystem(uri)
    filesystem.rm(path, recursive=True)


def test_every_file_is_pinned_with_day_size_version_and_rows(configure: Configure, requests_uri: str) -> None:
    content = parquet(250, row_group_size=100)
    add(requests_uri, -1, "part-1.parquet", content=content)
    window = select(configure(), DATE)
    assert window.training_days == tuple(map(day, range(-10, 0)))
    assert window.evaluation_days == (DATE,)
    assert [file.day for file in window.training] == [*window.training_days, day(-1)]
    assert [file.day for file in window.evaluation] == [DATE]
    pinned = window.training[-1]
    assert pinned.uri == storage.join(day_uri(requests_uri, -1), "part-1.parquet")
    assert (pinned.size, pinned.row_groups, pinned.num_rows) == (len(content), (100, 100, 50), 250)
    assert pinned.version.startswith("generation:" if requests_uri.startswith("gs://") else "sha256:")
    assert num_rows(window) == 1250


def test_the_date_itself_and_older_days_are_not_trained_on(configure: Configure, requests_uri: str) -> None:
    write_days(requests_uri, range(-15, -10))
    window = select(configure("data.window.num_evaluation_days=2"), DATE)
    assert window.training_days == tuple(map(day, range(-10, 0)))
    assert window.evaluation_days == (day(0), day(1))
    assert window.first_day == day(-10)


def test_another_content_under_one_name_gives_another_fingerprint(configure: Configure, requests_uri: str) -> None:
    first = select(configure(), DATE)
    assert select(configure(), DATE) == first
    add(requests_uri, -1, "part-0.parquet", content=parquet(130))
    second = select(configure(), DATE)
    assert (num_rows(first), num_rows(second)) == (1000, 1030)
    assert first.fingerprint != second.fingerprint


@local
def test_another_content_of_the_same_size_gives_another_fingerprint(configure: Configure, requests_uri: str) -> None:
    path = Path(day_uri(requests_uri, -1), "part-0.parquet")
    content = path.read_bytes()
    first = select(configure(), DATE)
    path.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])
    assert select(configure(), DATE).fingerprint != first.fingerprint
    path.write_bytes(content)
    assert select(configure(), DATE).fingerprint == first.fingerprint


@local
def test_equal_content_in_another_place_has_the_same_fingerprint(
    configure: Configure, requests_uri: str, tmp_path: Path
) -> None:
    storage.upload_tree(requests_uri, str(tmp_path / "copy" / "requests"))
    copy = select(configure(f"data.uri={tmp_path}/copy"), DATE)
    assert copy.fingerprint == select(configure(), DATE).fingerprint
    assert copy.training[0].uri.startswith(f"{tmp_path}/copy/")


@pytest.mark.parametrize("store_uri", ["local", "gcs"], indirect=True)
def test_files_and_days_that_another_process_adds_are_seen_by_the_next_selection(
    configure: Configure, requests_uri: str
) -> None:
    remove(day_uri(requests_uri, -4))
    first = select(configure("data.window.max_missing_days=1"), DATE)
    write = "import sys; from thaw.components import storage; storage.write_bytes(sys.argv[1], sys.stdin.buffer.read())"
    for offset, name in ((-1, "part-1.parquet"), (-4, "part-0.parquet")):
        uri = storage.join(day_uri(requests_uri, offset), name)
        subprocess.run([sys.executable, "-c", write, uri], input=parquet(30), check=True)
    second = select(configure("data.window.max_missing_days=1"), DATE)
    assert (first.missing_days, second.missing_days) == ((day(-4),), ())
    assert num_rows(second) == num_rows(first) + 60


@pytest.fixture
def three_gaps(requests_uri: str) -> str:
    """A folder that is gone, an empty one, and a file without rows."""
    remove(day_uri(requests_uri, -3))
    remove(day_uri(requests_uri, -5))
    if requests_uri.startswith("/"):
        Path(day_uri(requests_uri, -5)).mkdir()
    add(requests_uri, -7, "part-0.parquet", content=parquet(0))
    return requests_uri


def test_missing_and_empty_days_are_one_error_that_lists_them_sorted(configure: Configure, three_gaps: str) -> None:
    for allowed in (0, 2):
        with pytest.raises(WindowError) as caught:
            select(configure(f"data.window.max_missing_days={allowed}"), DATE)
        message = str(caught.value)
        assert "\n" not in message
        places = [message.index(str(day(offset))) for offset in (-7, -5, -3)]
        assert places == sorted(places)
        assert f"{day(-7)} (training: 0 rows)" in message
        assert f"3 of the 10 days in {three_gaps}, where data.window.max_missing_days is {allowed}" in message


def test_an_allowance_trains_on_the_days_that_are_left_and_names_the_others(
    configure: Configure, three_gaps: str
) -> None:
    write_days(three_gaps, range(-15, -10))
    window = select(configure("data.window.max_missing_days=3"), DATE)
    assert window.missing_days == (day(-7), day(-5), day(-3))
    assert window.training_days == tuple(day(offset) for offset in range(-10, 0) if offset not in (-7, -5, -3))
    assert {file.day for file in window.training} == set(window.training_days)
    assert num_rows(window) == 700


def test_no_allowance_makes_a_window_without_any_day(configure: Configure, requests_uri: str) -> None:
    for offset in range(-10, 0):
        remove(day_uri(requests_uri, offset))
    with pytest.raises(WindowError, match="10 of the 10 days"):
        select(configure("data.window.max_missing_days=10"), DATE)


def test_missing_days_of_all_logs_are_one_error(configure: Configure, requests_uri: str, store_uri: str) -> None:
    engagements_uri = storage.join(store_uri, "engagements")
    write_days(engagements_uri, range(-30, 0))
    remove(day_uri(engagements_uri, -12))
    remove(day_uri(requests_uri, -2))
    remove(day_uri(requests_uri, 1))
    config = configure(
        "backbone.fetch=null",
        "backbone.pretrain={num_days: 5}",
        "data.window.num_evaluation_days=2",
        "data.window.max_missing_days=5",
    )
    with pytest.raises(WindowError) as caught:
        select(config, DATE)
    message = str(caught.value)
    assert (
        f"{day(-12)} (engagements: no folder), {day(-2)} (training: no folder), {day(1)} (evaluation: no folder)"
    ) in message
    assert f"1 of the 2 days in {requests_uri}, where none may be missing" in message
    assert f"1 of the 5 days in {engagements_uri}, where backbone.pretrain.max_missing_days is 0" in message
    assert "data.window.max_missing_days" not in message


def test_the_backbone_reads_the_engagements_before_the_window(
    configure: Configure, requests_uri: str, store_uri: str
) -> None:
    write_days(storage.join(store_uri, "engagements"), range(-30, 2), num_rows=7)
    remove(day_uri(storage.join(store_uri, "engagements"), -12))
    config = configure("backbone.fetch=null", "backbone.pretrain={num_days: 5, max_missing_days: 1}")
    window = select(config, DATE)
    assert window.engagement_days == (day(-15), day(-14), day(-13), day(-11))
    assert window.missing_engagement_days == (day(-12),)
    assert [file.day for file in window.engagements] == list(window.engagement_days)
    assert sum(file.num_rows for file in window.engagements) == 28
    assert select(configure(), DATE).engagements == ()


def test_ten_thousand_missing_days_are_all_listed(configure: Configure, requests_uri: str) -> None:
    with pytest.raises(WindowError) as caught:
        select(configure("data.window.num_days=10000"), DATE)
    assert "9990 of the 10000 days" in str(caught.value)
    assert str(caught.value).count("training: no folder") == 9990


def test_a_day_without_its_marker_is_missing(configure: Configure, requests_uri: str) -> None:
    for offset in range(-10, 2):
        if offset != -6:
            add(requests_uri, offset, "_SUCCESS", content=b"")
    with pytest.raises(WindowError, match=rf"{day(-6)} \(training: no _SUCCESS\)"):
        select(configure("data.day_complete_marker=_SUCCESS"), DATE)
    add(requests_uri, -6, "_SUCCESS", content=b"")
    assert num_rows(select(configure("data.day_complete_marker=_SUCCESS"), DATE)) == 1000


def test_markers_hidden_and_temporary_names_are_counted_and_not_read(configure: Configure, requests_uri: str) -> None:
    add(requests_uri, -1, "_SUCCESS", "_metadata", ".part-0.parquet.crc", "part-0.parquet.crc", "part-1.parquet.tmp")
    add(requests_uri, -1, ".hidden.parquet", "_temporary/0/part-9.parquet", content=parquet(5))
    window = select(configure(), DATE)
    assert window.ignored_names == 7
    assert [file.uri for file in window.training if file.day == day(-1)] == [
        storage.join(day_uri(requests_uri, -1), "part-0.parquet")
    ]
    assert num_rows(window) == 1000


def test_files_in_folders_of_a_day_are_read(configure: Configure, requests_uri: str) -> None:
    add(requests_uri, -1, "hour=00/part-0.parquet", "hour=01/part-0.parquet", content=parquet(10))
    assert num_rows(select(configure(), DATE)) == 1020


def test_all_broken_files_are_one_error_with_names_and_sizes(configure: Configure, requests_uri: str) -> None:
    whole = parquet(100)
    footer_bytes = int.from_bytes(whole[-8:-4], "little") + 8
    add(requests_uri, -1, "part-2.parquet", content=b"")
    add(requests_uri, -2, "part-3.parquet", content=whole[:-1])
    add(requests_uri, -3, "part-4.parquet", content=b"PAR1")
    add(requests_uri, -4, "part-5.parquet", content=whole[:-footer_bytes] + bytes(30) + whole[30 - footer_bytes :])
    with pytest.raises(WindowError) as caught:
        select(configure(), DATE)
    assert len(str(caught.value).splitlines()) == 4
    for name, size in (
        ("part-2", 0),
        ("part-3", len(whole) - 1),
        ("part-4", 4),
        ("part-5", len(whole)),
    ):
        assert f"{name}.parquet: {size} bytes" in str(caught.value)


def test_a_footer_longer_than_the_first_read_is_read_whole(configure: Configure, requests_uri: str) -> None:
    add(requests_uri, -1, "wide.parquet", content=parquet(40, row_group_size=1, num_columns=40))
    window = select(configure(), DATE)
    assert window.training[-1].row_groups == (1,) * 40


def test_items_are_a_file_or_a_folder_and_have_no_day(configure: Configure, requests_uri: str, store_uri: str) -> None:
    for path in ("items.parquet", "items/part-0.parquet"):
        storage.write_bytes(storage.join(store_uri, path), parquet(6))
    by_file = select(configure("data.items={path: items.parquet}"), DATE)
    by_folder = select(configure("data.items={path: items}"), DATE)
    assert [(file.uri, file.day, file.num_rows) for file in by_file.items + by_folder.items] == [
        (storage.join(store_uri, "items.parquet"), None, 6),
        (storage.join(store_uri, "items/part-0.parquet"), None, 6),
    ]
    assert by_file.fingerprint != by_folder.fingerprint
    with pytest.raises(WindowError, match=r"data\.items\.path: no Parquet file at .*/content"):
        select(configure("data.items={path: content}"), DATE)


def test_the_truth_of_the_evaluation_days_is_pinned_apart(
    configure: Configure, requests_uri: str, store_uri: str
) -> None:
    write_days(storage.join(store_uri, "truth"), range(-10, 2))
    window = select(configure("data.truth_path=truth"), DATE)
    assert [(file.uri, file.day) for file in window.truth] == [
        (storage.join(day_uri(storage.join(store_uri, "truth"), 0), "part-0.parquet"), DATE)
    ]


def test_another_day_key_is_followed(configure: Configure, store_uri: str) -> None:
    for offset in range(-10, 1):
        uri = day_uri(storage.join(store_uri, "log/requests"), offset, key="dt")
        storage.write_bytes(storage.join(uri, "part-0.parquet"), parquet(1))
    assert num_rows(select(configure("data.day_key=dt", "data.requests_path=log/requests"), DATE)) == 10


def test_a_window_document_is_read_back_as_written(configure: Configure, requests_uri: str, store_uri: str) -> None:
    window = select(configure(), DATE)
    uri = storage.join(store_uri, "window.json")
    storage.write_bytes(uri, window.model_dump_json().encode())
    assert read_window(uri) == window
    storage.write_bytes(uri, b"{}")
    with pytest.raises(ValueError, match=r"window\.json: not a window document"):
        read_window(uri)


@local
def test_a_log_that_is_a_file_is_one_clear_error(configure: Configure, store_uri: str) -> None:
    Path(store_uri).mkdir()
    Path(store_uri, "requests").write_text("")
    with pytest.raises(storage.StorageError, match=f"{store_uri}/requests is a file, and a folder should be there"):
        select(configure(), DATE)


def test_data_without_a_place_is_refused(configure: Configure) -> None:
    config = configure("data.uri=null", "data.generate={kind: demo, size: S}")
    with pytest.raises(ValueError, match=r"data\.uri is not set"):
        select(config, DATE)


def test_a_file_without_a_column_is_named_with_the_key_that_asks_for_it(
    configure: Configure, requests_uri: str
) -> None:
    uri = storage.join(day_uri(requests_uri, -3), "part-1.parquet")
    storage.write_bytes(uri, parquet(5, columns=tuple(name for name in COLUMNS if name != "click")))
    with pytest.raises(WindowError) as fault:
        select(configure(), DATE)
    assert f"{uri}: no column 'click' (data.heads click); it has request_id, " in str(fault.value)


def test_ten_files_without_a_column_are_named_and_the_others_counted(configure: Configure, requests_uri: str) -> None:
    with pytest.raises(WindowError) as fault:
        select(configure("data.context=[{name: segment, column: Segment, kind: categorical, cardinality: 4}]"), DATE)
    lines = str(fault.value).splitlines()
    assert len(lines) == 11 and lines[-1] == "and 1 more files"
    assert all("no column 'Segment' (data.context segment)" in line for line in lines[:-1])


def test_a_column_that_stands_twice_is_named(configure: Configure, requests_uri: str) -> None:
    twice = pa.table([pa.array(range(5))] * (len(COLUMNS) + 1), names=[*COLUMNS, "user_id"])
    sink = pa.BufferOutputStream()
    pq.write_table(twice, sink)
    uri = storage.join(day_uri(requests_uri, -3), "part-1.parquet")
    storage.write_bytes(uri, bytes(sink.getvalue()))
    with pytest.raises(WindowError, match=r"more than one column 'user_id' \(data\.columns\.user_id\)") as fault:
        select(configure(), DATE)
    assert uri in str(fault.value)
