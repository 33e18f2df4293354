"""Checkpoints that any number of ranks can load: torch.distributed.checkpoint, with a mark that is written last.

The tensors travel in one flat dictionary:

    table/<name>                     weights of a sharded table
    table/<name>/<slot>              a slot of its fused optimizer (row-wise Adagrad: one number a row)
    dense/<fqn>                      dense parameters and buffers, the same on every rank
    dense_optimizer/<fqn>/<slot>     state of their optimizer

A value is a ShardedTensor or a DTensor, of which each rank saves and loads its own shards, or a plain tensor, of which
rank 0's is saved and every rank loads the whole. A rank that owns no shard of a tensor may leave its name out.
The folder is described in `checkpoint_folder.py`.
"""

import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from thaw.components import storage
from thaw.components.checkpoint_folder import (
    COMPLETE,
    CONFIG,
    PROGRESS,
    CheckpointError,
    Complete,
    clear_torn,
    file_sizes,
    newest_complete,
    read_complete,
    step_uri,
)
from thaw.components.config import RunConfig
from thaw.components.prepare_backbone.backbone import BACKBONE, Backbone
from thaw.components.runs import check_same_config
from thaw.components.trainer.checkpoint_files import StoreReader, StoreWriter

__all__ = ["CheckpointError", "load", "newest_complete", "read_complete", "save", "step_uri"]

Result = TypeVar("Result")

_NAME = re.compile(
    r"(?P<table>table/[^/]+)(?P<slot>/[^/]+)?|(?P<dense>dense/[^/]+)|(?P<state>dense_optimizer/[^/]+/[^/]+)"
)


def save(
    uri: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    document: RunConfig,
    progress: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
    backbone: Backbone | None = None,
) -> None:
    """Write a checkpoint to a folder of its own. Collective: all ranks of `group` must call.

    What a dead writer left in the folder is removed first.

    Args:
        uri: The folder.
        tensors: Flat, as above.
        document: The run's configuration, kept beside.
        progress: What had been trained: step, epoch, rows; what JSON can hold. Rank 0's is written.
        group: A gloo group, or one whose collectives can carry objects. None: the default group.
        backbone: Written beside where the folder is to be fetched as a backbone.

    Raises:
        CheckpointError: on every rank, whichever failed. The folder then has no mark.
    """

    def commit() -> None:
        documents = {CONFIG: document.model_dump(mode="json"), PROGRESS: dict(progress)}
        if backbone is not None:
            documents[BACKBONE] = backbone.model_dump(mode="json")
        for name, content in documents.items():
            data = storage.encode_json(content)
            storage.write_bytes(storage.join(uri, name), data)
            digests[name] = storage.digest(data)
        _mark(uri, metadata, digests, dist.get_world_size(group))

    def described(cause: str) -> str:
        return f"cannot save checkpoint {uri} ({dist.get_world_size(group)} ranks): {cause}"

    for name in tensors:
        _kind(name)  # refuses one of no kind
    _on_rank_0(group, lambda: clear_torn(uri), described)
    planner = DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True)
    writer = StoreWriter(uri)
    try:
        metadata = save_tensors(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        raise CheckpointError(described(_first_failure(error))) from error
    digests = _gathered(writer.fs.digests, group)
    # No rank is still writing: the save ends with a reduction over the ranks' results.
    _on_rank_0(group, commit, described)


def load(
    uri: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    group: dist.ProcessGroup | None = None,
    document: RunConfig | None = None,
) -> dict[str, Any]:
    """Fill `tensors` in place from a checkpoint, saved by any number of ranks. Collective.

    Of each of the four kinds of names `tensors` has either all that the checkpoint has, or none: a subset is an error.

    Args:
        uri: The folder.
        tensors: Flat, as above.
        group: As for `save`.
        document: The configuration of the run that goes on from here; it must agree with the saved one.

    Returns:
        The progress that was saved.

    Raises:
        CheckpointError: on every rank, whichever failed: torn, cut or missing files; a name, shape or type that
            differs; a configuration that disagrees. Tensors may then be filled in part: don't go on.
    """
    present_size = dist.get_world_size(group)
    complete = _on_rank_0(
        group, lambda: read_complete(uri), lambda cause: f"cannot load a checkpoint on {present_size} ranks: {cause}"
    )

    def described(cause: str) -> str:
        return f"cannot load checkpoint {uri}, saved by {complete.world_size} ranks, on {present_size} ranks: {cause}"

    def read_documents() -> dict[str, Any]:
        if document is not None:
            check_same_config(storage.read_json(storage.join(uri, CONFIG)), document)
        return storage.read_json(storage.join(uri, PROGRESS))

    progress = _on_rank_0(group, read_documents, described)
    if fault := _mismatch(complete, _gather_descriptions(tensors, group)):
        raise CheckpointError(described(fault))
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    try:
        load_tensors(dict(tensors), storage_reader=StoreReader(uri), planner=planner, process_group=group)
    except CheckpointException as error:
        raise CheckpointError(described(_first_failure(error))) from error
    return progress


def _mark(uri: str, metadata: Metadata, digests: dict[str, str], world_size: int) -> None:
    """Declare the folder complete as it lies there now."""
    files = file_sizes(uri)
    unseen = {entry.relative_path for entry in metadata.storage_data.values()} - set(files)
    if unseen:
        raise CheckpointError(f"{min(unseen)} is not there for rank 0: the ranks don't share this folder")
    complete = Complete(
        world_size=world_size,
        versions={name: version(name) for name in ("torch", "torchrec")},
        files=files,
        digests=digests,
        tensors={
            name: _described(info.properties.dtype, info.size)
            for name, info in metadata.state_dict_metadata.items()
            if isinstance(info, TensorStorageMetadata)
        },
    )
    storage.create_json(storage.join(uri, COMPLETE), complete.model_dump(mode="json"))


def _on_rank_0(group: dist.ProcessGroup | None, act: Callable[[], Result], described: Callable[[str], str]) -> Result:
    """What `act` gives on rank 0, on every rank; its error likewise. Collective."""
    outcome: list[Any] = [None, None]
    cause: Exception | None = None
    if dist.get_rank(group) == 0:
        try:
            outcome[0] = act()
        except Exception as error:
            cause = error
            text = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
            outcome[1] = described(text)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[1] is not None:
        raise CheckpointError(outcome[1]) from cause
    return outcome[0]


def _gather_descriptions(tensors: Mapping[str, torch.Tensor], group: dist.ProcessGroup | None) -> dict[str, str]:
    """Type and shape of every tensor that any rank has. Collective."""
    return _gathered({name: _described(tensor.dtype, tensor.size()) for name, tensor in tensors.items()}, group)


def _gathered(own: Mapping[str, str], group: dist.ProcessGroup | None) -> dict[str, str]:
    """What any rank has. Collective."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, dict(own), group=group)
    return {name: text for texts in gathered for name, text in texts.items()}


def _described(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _mismatch(complete: Complete, wanted: Mapping[str, str]) -> str | None:
    """What keeps the tensors that are described from being filled: one sentence, or None."""
    kinds = {_kind(name) for name in wanted}
    saved = {name: description for name, description in complete.tensors.items() if _kind(name) in kinds}
    if absent := sorted(set(wanted) - set(saved)):
        return f"it has no {', '.join(absent)}"
    if left_over := sorted(set(saved) - set(wanted)):
        return f"the model has no {', '.join(left_over)}"
    for name in sorted(wanted):
        if saved[name] != wanted[name]:
            return f"{name} is {saved[name]} there, and {wanted[name]} in the model"
    return None


def _kind(name: str) -> str:
    """Which of the four kinds a name is of."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"tensor name {name!r}: write table/<name>[/<slot>], dense/<fqn> or dense_optimizer/<fqn>/<slot>"
        )
    return "slot" if match["slot"] else str(match.lastgroup)


def _first_failure(error: CheckpointException) -> str:
    """The lowest rank's cause, its first line."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}".splitlines()[0]
