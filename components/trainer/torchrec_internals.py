"""Every name of TorchRec that its package does not export at the top, or that torch keeps private for it.

Read in torchrec 1.8.0 and torch 2.13.0. On a change of version, this file says what to read again.
"""

from typing import Any

import torch.distributed as dist
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.distributed.optim.apply_optimizer_in_backward import (
    _apply_optimizer_in_backward as apply_optimizer_in_backward,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, TopologyFactory, TrainerConfig
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise, table_wise
from torchrec.distributed.types import EmbeddingModuleShardingPlan, LazyNoWait, ShardedModule, ShardingEnv
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

__all__ = [
    "EmbeddingCollectionSharder",
    "EmbeddingModuleShardingPlan",
    "EmbeddingShardingPlanner",
    "FixedPercentageStorageReservation",
    "HardwareConfig",
    "KernelConfig",
    "LazyNoWait",
    "ParameterConstraints",
    "RowWiseAdagrad",
    "Shard",
    "ShardedEmbeddingCollection",
    "ShardedModule",
    "ShardedTensor",
    "ShardingEnv",
    "TopologyFactory",
    "TrainerConfig",
    "WeightDecayMode",
    "apply_optimizer_in_backward",
    "construct_module_sharding_plan",
    "features_by_table",
    "group_of",
    "row_wise",
    "table_wise",
]


def features_by_table(module: ShardedModule) -> dict[str, list[str]]:
    """Names of the features that look rows up in each table of a sharded collection; empty for other modules."""
    configs: Any = getattr(module, "_embedding_bag_configs", None) or getattr(module, "_embedding_configs", ())
    return {config.name: list(config.feature_names) for config in configs}


def group_of(module: ShardedModule) -> dist.ProcessGroup | None:
    """The process group that a sharded collection communicates in; None for other modules."""
    return getattr(getattr(module, "_env", None), "process_group", None)
