"""The dense half's optimizer, and its state by flat name."""

import torch
from torch import nn

from thaw.components.config.recipe import Recipe


def dense_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of the dense parameters, its state in place from the start, so that a checkpoint can fill it."""
    if recipe.dense_optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), lr=recipe.dense_lr)
    optimizer = torch.optim.Adam(module.parameters(), lr=recipe.dense_lr, fused=True)
    for parameter in module.parameters():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def dense_tensors(module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """The live tensors by flat name: `dense/<fqn>`, and of the optimizer `dense_optimizer/<fqn>/<slot>`."""
    tensors = {f"dense/{name}": tensor for name, tensor in module.state_dict().items()}
    if optimizer is not None:
        for name, parameter in module.named_parameters():
            for slot, value in optimizer.state[parameter].items():
                tensors[f"dense_optimizer/{name}/{slot}"] = value
    return tensors
