"""The sharded modules of a model, and what they must be like to be looked up ahead."""

from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thaw.components.trainer.torchrec_internals import ShardedModule, group_of


def sharded_modules(
    model: nn.Module | Mapping[str, ShardedModule], named: Mapping[str, Collection[str]]
) -> dict[str, ShardedModule]:
    """The sharded modules by name, in the same order on every rank.

    Args:
        model: that has them, or themselves.
        named: names that the caller gave, by the argument that they came in.

    Raises:
        ValueError: there is none, one does more than a lookup, or a name is none of theirs.
    """
    if isinstance(model, nn.Module):
        found = {name: module for name, module in model.named_modules() if isinstance(module, ShardedModule)}
    else:
        found = dict(model)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no sharded module; give those that it keeps from modules() as a mapping"
        )
    for name, module in found.items():
        if type(module).forward is not ShardedModule.forward:
            raise ValueError(
                f"{name} is a {type(module).__name__}, whose forward does more than input dist, lookup and output dist"
            )
        if "forward" in vars(module):
            raise ValueError(f"the forward of {name} has been replaced already; close the earlier PrefetchingForward")
    for argument, names in named.items():
        for name in names:
            if name not in found:
                raise ValueError(f"{argument} names {name!r}; the sharded modules are {', '.join(sorted(found))}")
    return dict(sorted(found.items()))


def check_device(modules: Mapping[str, ShardedModule], device: torch.device) -> None:
    """Pass the device that the tables of this rank are on.

    Raises:
        ValueError: they are on another one.
    """
    for name, module in modules.items():
        for parameter in module.parameters():
            if parameter.device.type != device.type:
                raise ValueError(
                    f"the tables of {name} are on {parameter.device}, not on {device}; give it as `device`"
                )


def check_kernels(modules: Mapping[str, ShardedModule]) -> None:
    """Pass modules whose tables are updated by their own backward pass.

    Raises:
        ValueError: a table has no fused optimizer, or is replicated; its gradient would be left to another optimizer.
    """
    for name, module in modules.items():
        for table, placed in module.module_sharding_plan.items():
            if placed.sharding_type == "data_parallel" or placed.compute_kernel == "dense":
                raise ValueError(
                    f"table {table} of {name} is {placed.sharding_type} with kernel {placed.compute_kernel}, so its "
                    f"own backward pass doesn't update it; give it a fused optimizer (apply_optimizer_in_backward) "
                    f"and shard it, or freeze the module"
                )


def check_group(model: object, modules: Mapping[str, ShardedModule], group: dist.ProcessGroup) -> None:
    """Pass a group that the modules are sharded over, and that nothing but the tables communicates in.

    Raises:
        ValueError: the default group, another than the modules', or that of a DistributedDataParallel of the model.
    """
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"group is {group!r}: give the process group that the tables are sharded over")
    if group is dist.group.WORLD:
        raise ValueError(
            "the tables need a process group of their own, as their collectives overlap with all others: shard over "
            "torch.distributed.new_group()"
        )
    if isinstance(model, nn.Module):
        for name, module in model.named_modules():
            if isinstance(module, DistributedDataParallel) and module.process_group is group:
                raise ValueError(
                    f"the gradients of {name or 'the model'} are reduced in the tables' process group; give "
                    f"DistributedDataParallel another one"
                )
    for name, sharded in modules.items():
        if (own := group_of(sharded)) is not None and own is not group:
            raise ValueError(f"{name} is sharded over another process group than `group`; give the one that it was")
