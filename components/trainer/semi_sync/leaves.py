"""The cut between the halves: what a lookup gives, detached, is a leaf of the dense half's graph.

The dense backward pass ends at the leaves. Their gradients go to the chain, whose own backward pass begins at the
roots: the same tensors, with the graph that leads back to the tables.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torchrec import JaggedTensor, KeyedTensor


@dataclass
class Gate:
    """Whether the gradients of a cut have been taken. The leaves' hooks hold it, and nothing larger."""

    is_shut: bool = False


@dataclass
class Cut:
    """The output of one module for one batch, on both sides."""

    output: KeyedTensor | dict[str, JaggedTensor]
    """What the model gets; its values are the leaves."""
    roots: list[torch.Tensor]
    leaves: list[torch.Tensor]
    gate: Gate

    def tensors(self) -> list[torch.Tensor]:
        """All that the dense half reads."""
        if isinstance(self.output, KeyedTensor):
            return [self.output.values()]
        parts = [(jt.values(), jt.weights_or_none(), jt.lengths_or_none(), jt.offsets_or_none()) for jt in _each(self)]
        return [tensor for part in parts for tensor in part if tensor is not None]

    def take(self) -> list[torch.Tensor | None]:
        """The gradients that the leaves have by now; later ones are refused."""
        gradients = [leaf.grad for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        self.gate.is_shut = True
        return gradients

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Route the gradients to the tables, zeros where this rank has none. Collective: the graph communicates."""
        full = [torch.zeros_like(root) if g is None else g for root, g in zip(self.roots, gradients, strict=True)]
        torch.autograd.backward(self.roots, full)
        self.roots = []

    def spoiled(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """int32, one number a column of all leaves: 1 where a gradient isn't finite."""
        columns = [
            # Zero times what isn't finite is no zero: one pass, and faster than to ask of every number.
            torch.zeros(leaf.shape[1], dtype=torch.bool, device=leaf.device) if g is None else (g * 0).sum(dim=0) != 0
            for leaf, g in zip(self.leaves, gradients, strict=True)
        ]
        return torch.cat(columns).int()

    def widths(self) -> list[tuple[str, int]]:
        """The features that the columns of `spoiled` belong to, and how many each has."""
        if isinstance(self.output, KeyedTensor):
            return list(zip(self.output.keys(), self.output.length_per_key(), strict=True))
        return list(zip(self.output, (leaf.shape[1] for leaf in self.leaves), strict=True))


def feature_at(widths: list[tuple[str, int]], column: int) -> str:
    """The feature of a column."""
    for feature, width in widths:
        if column < width:
            return feature
        column -= width
    raise AssertionError(column)


def cut(output: Any, is_trained: bool, on_gradient: Callable[[Gate], None]) -> Cut:
    """Cut a module's output from its graph.

    Args:
        output: a KeyedTensor (pooled) or a dict of JaggedTensors (sequences).
        is_trained: whether its leaves want a gradient; otherwise the output is passed on as it is.
        on_gradient: called when a backward pass has reached a leaf.
    """
    gate = Gate()
    if not is_trained:
        return Cut(output, [], [], gate)

    def leaf_of(root: torch.Tensor) -> torch.Tensor:
        leaf = root.detach().requires_grad_()
        leaf.register_post_accumulate_grad_hook(lambda _: on_gradient(gate))
        return leaf

    if isinstance(output, KeyedTensor):
        leaf = leaf_of(output.values())
        pooled = KeyedTensor(output.keys(), output.length_per_key(), leaf, output.key_dim())
        return Cut(pooled, [output.values()], [leaf], gate)
    leaves = {feature: leaf_of(jagged.values()) for feature, jagged in output.items()}
    sequences = {
        feature: JaggedTensor(
            leaves[feature], jagged.weights_or_none(), jagged.lengths_or_none(), jagged.offsets_or_none()
        )
        for feature, jagged in output.items()
    }
    return Cut(sequences, [jagged.values() for jagged in output.values()], list(leaves.values()), gate)


def check_output(output: Any, name: str) -> None:
    """Pass what can be cut from its graph.

    Raises:
        TypeError: something else than a KeyedTensor or a dict of JaggedTensors.
    """
    if isinstance(output, KeyedTensor):
        return
    if isinstance(output, dict) and all(isinstance(value, JaggedTensor) for value in output.values()):
        return
    kind = f"a tuple of {len(output)}" if isinstance(output, tuple) else f"a {type(output).__name__}"
    raise TypeError(
        f"{name} gives {kind}; only a KeyedTensor or a dict of JaggedTensors can be cut from its graph. Leave "
        f"this module out"
    )


def clip_norm(
    parameters: Iterable[torch.Tensor],
    leaves: Iterable[torch.Tensor],
    max_norm: float,
    group: dist.ProcessGroup,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scale the gradients of both halves so that their joint 2-norm is at most `max_norm`; gives the norm before.

    The dense gradients are the same on every rank, means over ranks; a leaf is of one rank alone, and the tables take
    the mean over ranks too. So the norm is that of the gradient of the mean loss, and one factor serves all ranks.
    With a loss `scale` the leaves still bear it, and the dense gradients have been unscaled.

    Collective over `group`, which must not be the tables' own.
    """
    parameters, leaves = list(parameters), list(leaves)
    dense = [p.grad for p in parameters if p.grad is not None]
    sparse = [leaf.grad for leaf in leaves if leaf.grad is not None]
    square = torch.zeros((), dtype=torch.float64, device=(parameters + leaves)[0].device)
    for gradient in sparse:
        square += gradient.double().square().sum()
    square /= (group.size() * (1 if scale is None else scale.double())) ** 2
    dist.all_reduce(square, group=group)
    for gradient in dense:
        square += gradient.double().square().sum()
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in dense + sparse:
        gradient.mul_(factor)
    return norm


def _each(made: Cut) -> Iterable[JaggedTensor]:
    assert isinstance(made.output, dict)
    return made.output.values()
