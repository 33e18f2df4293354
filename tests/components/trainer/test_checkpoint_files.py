"""The files and the folder of a checkpoint, with one rank: this process."""

import logging
import multiprocessing
import os
import resource
import signal
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from thaw.components import config, storage
from thaw.components.checkpoint_folder import check_content
from thaw.components.prepare_backbone.backbone import Backbone, read_backbone
from thaw.components.trainer import checkpoint, checkpoint_files
from thaw.components.trainer.checkpoint import CheckpointError

DOCUMENT = config.load("small")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    rendezvous = tmp_path_factory.mktemp("alone") / "rendezvous"
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors() -> dict[str, torch.Tensor]:
    return {"table/user": torch.arange(12.0).view(4, 3), "dense/bias": torch.ones(2)}


def save(uri: Path | str, step: int = 0, **options: Any) -> None:
    checkpoint.save(str(uri), tensors(), document=DOCUMENT, progress={"step": step}, **options)


def _die_in_the_second_file(folder: Path) -> None:
    checkpoint_files.LARGE_TENSOR_BYTES = 1000
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    # Past this size of a file the kernel kills the process: no handler runs, no buffer is flushed.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500))
    large = {"table/item": torch.ones(1000), "dense/bias": torch.ones(2)}
    checkpoint.save(str(folder / "step-4"), large, document=DOCUMENT, progress={"step": 4})


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, alone: None) -> Path:
    """A complete checkpoint of step 2, and one of step 4 whose writer was killed after its first file of tensors."""
    folder = tmp_path_factory.mktemp("killed")
    save(folder / "step-2", step=2)
    writer = multiprocessing.get_context("spawn").Process(target=_die_in_the_second_file, args=(folder,), daemon=True)
    writer.start()
    writer.join(timeout=100)
    assert writer.exitcode == -signal.SIGXFSZ
    assert (folder / "step-4" / "__0_0.distcp").exists()
    return folder


def test_the_newest_checkpoint_is_never_one_whose_writer_was_killed(killed, caplog):
    # https://github.com/Lightning-AI/pytorch-lightning/issues/688
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest_complete(str(killed)) == f"{killed}/step-2"
    assert f"{killed}/step-4" in caplog.text
    assert checkpoint.newest_complete(f"{killed}/nothing") is None


def test_a_torn_checkpoint_asked_for_by_name_is_refused(killed):
    with pytest.raises(CheckpointError, match=r"step-4 .*complete\.json is missing"):
        checkpoint.load(f"{killed}/step-4", tensors())
    with pytest.raises(CheckpointError, match=r"step-4 .*complete\.json is missing"):
        checkpoint.read_complete(f"{killed}/step-4")


def test_steps_are_numbers_not_texts(tmp_path, alone):
    for step in (9, 10):
        save(tmp_path / f"step-{step}", step=step)
    (tmp_path / "step-11.old").mkdir()
    assert checkpoint.newest_complete(str(tmp_path)) == f"{tmp_path}/step-10"


def test_a_shard_cut_by_one_byte_is_named_with_both_sizes(tmp_path, alone):
    save(tmp_path / "step-4")
    shard = tmp_path / "step-4" / "__0_0.distcp"
    size = shard.stat().st_size
    os.truncate(shard, size - 1)
    with pytest.raises(CheckpointError, match=rf"__0_0\.distcp has {size - 1} bytes, {size} bytes expected"):
        checkpoint.load(checkpoint.newest_complete(str(tmp_path)), tensors())


def test_progress_that_json_cannot_hold_is_refused(tmp_path, alone):
    with pytest.raises(CheckpointError, match="nan"):
        checkpoint.save(str(tmp_path / "c"), tensors(), document=DOCUMENT, progress={"loss": float("nan")})


def test_a_tensor_name_of_no_kind_is_refused(tmp_path, alone):
    with pytest.raises(ValueError, match="'model/bias': write table/"):
        checkpoint.save(str(tmp_path / "c"), {"model/bias": torch.ones(1)}, document=DOCUMENT, progress={})


def test_a_large_tensor_has_a_file_of_its_own(tmp_path, alone, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "LARGE_TENSOR_BYTES", 48)
    save(tmp_path / "c")
    assert len(list((tmp_path / "c").glob("*.distcp"))) == 2
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    checkpoint.load(str(tmp_path / "c"), loaded)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors().items())


def test_torchs_own_reader_reads_it(tmp_path, alone):
    save(tmp_path / "c")
    assert set(FileSystemReader(tmp_path / "c").read_metadata().state_dict_metadata) == set(tensors())
    dcp_to_torch_save(tmp_path / "c", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")
    assert all(torch.equal(whole[name], tensor) for name, tensor in tensors().items())


@pytest.mark.parametrize("store", ["local", "memory://thaw-checkpoint-test"])
def test_an_error_half_way_publishes_no_file(tmp_path, store):
    # https://github.com/googleapis/google-cloud-java/issues/12635
    uri = str(tmp_path) if store == "local" else store
    files = checkpoint_files.StoreWriter(uri).fs
    path = files.concat_path(files.root, "__0_0.distcp")
    with (
        pytest.raises(OSError, match=r"__0_0\.distcp: cannot write: the tensor is gone"),
        files.create_stream(path, "wb") as stream,
    ):
        stream.write(b"half")
        raise RuntimeError("the tensor is gone")
    assert not files.exists(path)


def test_a_checkpoint_travels_through_another_filesystem(alone):
    uri = "memory://thaw-checkpoint-test/step-1"
    save(uri, step=1)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    assert checkpoint.newest_complete("memory://thaw-checkpoint-test") == uri
    assert checkpoint.load(uri, loaded) == {"step": 1}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors().items())


def test_a_backbone_is_a_checkpoint_with_its_manifest(tmp_path, alone):
    backbone = Backbone.of(DOCUMENT, [date(2026, 1, 3), date(2026, 1, 4)])
    save(tmp_path / "c", backbone=backbone)
    assert read_backbone(str(tmp_path / "c")) == backbone
    assert "backbone.json" in checkpoint.read_complete(str(tmp_path / "c")).files


@pytest.mark.parametrize("store", ["local", "memory://thaw-checkpoint-digests"])
def test_the_mark_has_the_digest_of_every_file_as_it_was_written(tmp_path, alone, monkeypatch, store):
    monkeypatch.setattr(checkpoint_files, "LARGE_TENSOR_BYTES", 48)
    uri = str(tmp_path / "c") if store == "local" else store
    save(uri, backbone=Backbone.of(DOCUMENT, [date(2026, 1, 3)]))
    complete = checkpoint.read_complete(uri)
    assert complete.digests.keys() == complete.files.keys() >= {".metadata", "__0_0.distcp", "__0_1.distcp"}
    for name, digest in complete.digests.items():
        assert storage.content_version(storage.join(uri, name)) == digest
    check_content(uri)


def test_one_bit_turned_in_a_shard_is_found_with_both_digests(tmp_path, alone):
    save(tmp_path / "c")
    shard = tmp_path / "c" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    written = storage.digest(content)
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        check_content(str(tmp_path / "c"))
    assert f"__0_0.distcp is {storage.digest(content)}, and was written as {written}" in str(caught.value)
