import shutil
from pathlib import Path

import pytest

from thaw.components import storage
from thaw.components.config import load
from thaw.components.refused import RefusedError
from thaw.components.runs import (
    ChangedOutputError,
    Lineage,
    NotCommittedError,
    Parent,
    Reference,
    create_run,
    parent_of,
    read_run,
    stage,
)

CONFIG = load("small")


def do(run_uri: str, name: str, **inputs: str) -> Reference:
    with stage(CONFIG, run_uri, name, inputs) as current:
        storage.write_bytes(storage.join(current.uri, "window.json"), name.encode())
        current.commit(outputs={"window": "window.json"}, window={"date": "2026-03-02"})
    assert current.committed
    return current.committed


def finished(root: str) -> tuple[str, dict[str, Reference]]:
    """A run of which evaluate is not done yet."""
    run_uri = create_run(root, "r", CONFIG)
    done = {"select-window": do(run_uri, "select-window")}
    window = done["select-window"].uri
    done["prepare-backbone"] = do(run_uri, "prepare-backbone", window=window)
    done["train-frozen"] = do(run_uri, "train-frozen", window=window, parent=done["prepare-backbone"].uri)
    done["train-cotrain"] = do(run_uri, "train-cotrain", window=window, parent=done["train-frozen"].uri)
    return run_uri, done


def rerun(root: str, inputs: dict[str, Reference], run_id: str = "again") -> str:
    parent = Parent(run="r", stage="train-cotrain", inputs=inputs)
    extra = {"kind": "from:train-cotrain", "parent": parent.model_dump(mode="json")}
    run_uri = create_run(root, run_id, CONFIG, extra)
    assert parent_of(read_run(run_uri)) == parent
    return run_uri


def test_a_stage_is_found_as_the_later_ones_saw_it(store_uri: str) -> None:
    run_uri, done = finished(store_uri)
    lineage = Lineage(run_uri)
    for name, reference in done.items():
        assert lineage.find(name)[0] == reference


def test_an_attempt_that_no_later_stage_saw_does_not_take_the_place_of_the_one_they_saw(tmp_path: Path) -> None:
    run_uri, done = finished(str(tmp_path))
    second = do(run_uri, "select-window")
    assert second.uri.endswith("attempt-2")
    assert Lineage(run_uri).find("select-window")[0] == done["select-window"]


def test_a_stage_that_is_absent_is_named_with_its_place(tmp_path: Path) -> None:
    run_uri, _ = finished(str(tmp_path))
    with pytest.raises(NotCommittedError, match=f"stage evaluate of run r is not committed: .*{run_uri}/evaluate"):
        Lineage(run_uri).find("evaluate")


def test_a_rerun_finds_what_its_parent_did_as_far_back_as_it_goes(tmp_path: Path) -> None:
    _, done = finished(str(tmp_path))
    again = rerun(str(tmp_path), {name: done[name] for name in ("select-window", "train-frozen")})
    cotrained = do(again, "train-cotrain", window=done["select-window"].uri, parent=done["train-frozen"].uri)
    lineage = Lineage(again)
    assert lineage.find("train-cotrain")[0] == cotrained
    for name in ("select-window", "prepare-backbone", "train-frozen"):
        assert lineage.find(name)[0] == done[name]


@pytest.mark.parametrize("name", ["manifest.json", "window.json"])
def test_a_stage_of_a_rerun_refuses_an_input_that_changed_since_it_was_asked_for(tmp_path: Path, name: str) -> None:
    _, done = finished(str(tmp_path))
    again = rerun(str(tmp_path), {name: done[name] for name in ("select-window", "train-frozen")})
    place = Path(done["train-frozen"].uri, name)
    place.write_bytes(place.read_bytes() + b" ")
    window, parent = done["select-window"].uri, done["train-frozen"].uri
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            do(again, "train-cotrain", window=window, parent=parent)
        assert "train-frozen of run r" in str(caught.value) and str(caught.value).count("sha256:") == 2
    assert [path.name for path in Path(again, "train-cotrain").iterdir() if path.is_dir()] == ["attempt-1"]


def test_both_digests_of_a_changed_manifest_are_told_with_who_saw_the_first(tmp_path: Path) -> None:
    run_uri, done = finished(str(tmp_path))
    place = Path(done["train-frozen"].uri, "manifest.json")
    place.write_bytes(place.read_bytes() + b" ")
    with pytest.raises(ChangedOutputError) as caught:
        Lineage(run_uri).find("train-frozen")
    message = str(caught.value)
    assert f"train-cotrain of run r saw {done['train-frozen'].digest}" in message
    assert storage.digest(place.read_bytes()) in message


def test_a_damaged_stage_hides_none_before_it(tmp_path: Path) -> None:
    run_uri, done = finished(str(tmp_path))
    Path(done["train-cotrain"].uri, "manifest.json").write_text("{")
    assert Lineage(run_uri).find("train-frozen")[0] == done["train-frozen"]


@pytest.mark.parametrize("place", ["root/runs/copy", "second/runs/r"])
def test_a_copy_of_a_run_is_refused_with_both_folders(tmp_path: Path, place: str) -> None:
    run_uri, _ = finished(f"{tmp_path}/root")
    copied = shutil.copytree(run_uri, tmp_path / place)
    with pytest.raises(RefusedError, match="if the folder is a copy") as caught:
        Lineage(str(copied))
    assert f"run r in {copied} was made from {run_uri}/select-window/attempt-1" in str(caught.value)


def test_a_copy_of_a_rerun_beside_one_of_its_parent_is_refused(tmp_path: Path) -> None:
    _, done = finished(f"{tmp_path}/root")
    again = rerun(f"{tmp_path}/root", {name: done[name] for name in ("select-window", "train-frozen")})
    shutil.copytree(tmp_path / "root", tmp_path / "second")
    assert Lineage(again).find("train-frozen")[0] == done["train-frozen"]
    with pytest.raises(RefusedError, match=r"was made from .*root/runs/r/select-window/attempt-1"):
        Lineage(f"{tmp_path}/second/runs/again")


@pytest.mark.parametrize("name", ["{root}/link/runs/r", "file://{root}/real/runs/r"])
def test_another_name_of_the_folder_is_no_copy(tmp_path: Path, name: str) -> None:
    _, done = finished(f"{tmp_path}/real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert Lineage(name.format(root=tmp_path)).find("train-frozen")[0] == done["train-frozen"]
