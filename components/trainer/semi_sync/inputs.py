"""Where in a batch a module's input is: found once by object identity, followed in every later batch.

A batch is anything made of dataclasses, objects with attributes, mappings and sequences, nested as it likes. The model
is never traced: what it does with the batch stays its own business.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import torch
from torch import nn
from torchrec import JaggedTensor, KeyedJaggedTensor, KeyedTensor

Path = tuple[tuple[Literal["attribute", "item"], Any], ...]
"""Steps from a batch to one of its parts; empty for the batch itself."""

_JAGGED = (KeyedJaggedTensor, JaggedTensor, KeyedTensor)
_MAX_DEPTH = 8


def locate(batch: Any, part: object) -> Path | None:
    """The way from the batch to this very object; None where the batch doesn't hold it."""
    return next((path for path, found in _walk(batch) if found is part), None)


def follow(batch: Any, path: Path) -> Any:
    """The part of the batch at a path.

    Raises:
        LookupError, AttributeError: the batch has no such part.
    """
    for kind, name in path:
        batch = getattr(batch, name) if kind == "attribute" else batch[name]
    return batch


def is_same(one: KeyedJaggedTensor, other: KeyedJaggedTensor) -> bool:
    """Whether two inputs look up the same rows: of the same memory, or of equal content, for which the host waits."""
    if one is other:
        return True
    if one.keys() != other.keys():
        return False
    pairs = ((one.values(), other.values()), (one.lengths(), other.lengths()))
    return all(x.shape == y.shape and (x.data_ptr() == y.data_ptr() or bool(torch.equal(x, y))) for x, y in pairs)


def spelled(path: Path) -> str:
    """The path as Python would have it: `batch.source.ids["user"]`."""
    return "batch" + "".join(f".{name}" if kind == "attribute" else f"[{name!r}]" for kind, name in path)


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor in the batch, those of its jagged tensors included."""
    for _, part in _walk(batch):
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, JaggedTensor | KeyedJaggedTensor):
            parts = (part.values(), part.weights_or_none(), part.lengths_or_none(), part.offsets_or_none())
            yield from (tensor for tensor in parts if tensor is not None)
            if isinstance(part, KeyedJaggedTensor) and (inverse := part.inverse_indices_or_none()) is not None:
                yield inverse[1]
        elif isinstance(part, KeyedTensor):
            yield part.values()


def _walk(batch: Any) -> Iterator[tuple[Path, Any]]:
    """The batch and its parts, nearest first, each object once."""
    seen: set[int] = set()
    level: list[tuple[Path, Any]] = [((), batch)]
    for _ in range(_MAX_DEPTH):
        below: list[tuple[Path, Any]] = []
        for path, part in level:
            if id(part) in seen:
                continue
            seen.add(id(part))
            yield path, part
            below += [((*path, step), child) for step, child in _children(part)]
        level = below


def _children(part: Any) -> Iterator[tuple[tuple[Literal["attribute", "item"], Any], Any]]:
    if isinstance(part, (*_JAGGED, torch.Tensor, nn.Module, str, bytes, type)):
        return
    if isinstance(part, Mapping):
        yield from ((("item", key), value) for key, value in part.items())
    elif isinstance(part, list | tuple):
        yield from ((("item", index), value) for index, value in enumerate(part))
    elif is_dataclass(part):
        yield from ((("attribute", field.name), getattr(part, field.name, None)) for field in fields(part))
    elif hasattr(part, "__dict__"):
        yield from ((("attribute", name), value) for name, value in vars(part).items())
