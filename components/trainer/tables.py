"""The sparse half: ID tables sharded by TorchRec, their optimizer fused into the backward pass.

Tables that train and tables that are frozen stand in sharded modules of their own. A frozen module runs without
autograd: no gradient is routed into it, none is communicated, and neither a row nor an optimizer slot is written. It
keeps the fused kernel all the same, so that nothing is rebuilt at the thaw.

Whatever takes the place of a sharded module's `forward` (a prefetching one, say) sees what TorchRec's sees: the batch's
KeyedJaggedTensor itself.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingCollection, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor

from thaw.components.config.training import Sharding
from thaw.components.trainer.initial_rows import initial_rows
from thaw.components.trainer.sharding import Piece, check_owners, plan_sharding
from thaw.components.trainer.torchrec_internals import (
    EmbeddingCollectionSharder,
    RowWiseAdagrad,
    Shard,
    ShardedEmbeddingCollection,
    ShardedTensor,
    ShardingEnv,
    WeightDecayMode,
    apply_optimizer_in_backward,
)


@dataclass(frozen=True)
class TableSpec:
    """One table and the features that look rows up in it."""

    name: str
    num_rows: int
    features: tuple[str, ...]


@dataclass(frozen=True)
class TableOptimizer:
    """The optimizer that FBGEMM fuses into the backward pass."""

    kind: Literal["rowwise_adagrad", "sgd"]
    lr: float
    weight_decay: float = 0.0
    """L2, on the rows that a batch touches. Row-wise Adagrad on CUDA alone knows it."""


class ShardedTables(nn.Module):
    """All tables of a model, each row on one rank.

    Collective: all ranks of the group must build it, and must call `forward` and backward equally often.
    """

    def __init__(
        self,
        specs: tuple[TableSpec, ...],
        dim: int,
        optimizer: TableOptimizer,
        *,
        seed: int,
        group: dist.ProcessGroup,
        device: torch.device,
        sharding: Mapping[str, Sharding] | None = None,
        frozen: Collection[str] = (),
    ) -> None:
        """Shard the tables and fill them with their initial rows.

        Args:
            specs: the tables.
            dim: columns of every table.
            optimizer: of the tables that train.
            seed: of the initial rows.
            group: of the sparse half alone; its collectives are issued by one thread.
            device: of the rows.
            sharding: `table_wise` or `row_wise` for a table; the planner places the others.
            frozen: names of the tables that do not train.
        """
        super().__init__()
        self.specs = specs
        self.dim = dim
        self.frozen = frozenset(frozen)
        self._group = group
        trained = tuple(spec for spec in specs if spec.name not in self.frozen)
        still = tuple(spec for spec in specs if spec.name in self.frozen)
        self.collections: dict[str, ShardedEmbeddingCollection] = {
            part: _shard(part_specs, dim, optimizer, group, device, sharding or {})
            for part, part_specs in (("trained", trained), ("frozen", still))
            if part_specs
        }
        """The sharded modules. Kept from `modules()`: no optimizer of the dense half is to find their rows."""
        self._check_owners()
        for name, shard in self.shards():
            start, num_rows = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(initial_rows(seed, name, start, num_rows, dim))

    def forward(self, ids: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """The rows of every id, by feature; those of frozen tables carry no gradient."""
        rows: dict[str, JaggedTensor] = {}
        for part, collection in self.collections.items():
            with torch.set_grad_enabled(part == "trained" and torch.is_grad_enabled()):
                rows.update(collection(ids).items())
        return rows

    def tensors(self) -> dict[str, ShardedTensor]:
        """Rows and optimizer slots by flat name: `table/<name>`, `table/<name>/<slot>`.

        They are the live storage: writing into a local shard changes the table. A rank that holds no row of a table may
        lack the names of its slots.
        """
        found: dict[str, ShardedTensor] = {}
        for collection in self.collections.values():
            for key, weight in collection.state_dict().items():
                found[f"table/{_table_of(key)}"] = weight
            for key, slots in collection.fused_optimizer.state_dict()["state"].items():
                for slot, value in slots.items():
                    found[f"table/{_table_of(key)}/{slot.rpartition('.')[2]}"] = value
        return dict(sorted(found.items()))

    def shards(self) -> Iterator[tuple[str, Shard]]:
        """The ranges of rows that this rank holds, with the name of their table."""
        for collection in self.collections.values():
            for key, weight in collection.state_dict().items():
                for shard in weight.local_shards():
                    yield _table_of(key), shard

    def _check_owners(self) -> None:
        held = [
            Piece(name, shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]) for name, shard in self.shards()
        ]
        everyone: list[list[Piece]] = [[]] * self._group.size()
        dist.all_gather_object(everyone, held, group=self._group)
        check_owners(everyone, {spec.name: spec.num_rows for spec in self.specs})


def _shard(
    specs: tuple[TableSpec, ...],
    dim: int,
    optimizer: TableOptimizer,
    group: dist.ProcessGroup,
    device: torch.device,
    sharding: Mapping[str, Sharding],
) -> ShardedEmbeddingCollection:
    collection = EmbeddingCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingConfig(
                name=spec.name,
                embedding_dim=dim,
                num_embeddings=spec.num_rows,
                feature_names=list(spec.features),
                init_fn=_leave,
            )
            for spec in specs
        ],
    )
    kernel_options = {}
    if optimizer.weight_decay:
        # Without a mode the kernel takes the number and does nothing with it.
        kernel_options["weight_decay_mode"] = WeightDecayMode.L2
    apply_optimizer_in_backward(
        RowWiseAdagrad if optimizer.kind == "rowwise_adagrad" else torch.optim.SGD,
        collection.parameters(),
        {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay},
    )
    sharder = EmbeddingCollectionSharder(fused_params=kernel_options)
    plan = plan_sharding(collection, sharding, sharder, group, device)
    return sharder.shard(collection, plan, ShardingEnv.from_process_group(group), device)


def _leave(rows: torch.Tensor) -> None:
    """Initialize nothing: `ShardedTables` fills the rows, once it knows which ones a rank holds."""


def _table_of(key: str) -> str:
    """`user` of `embeddings.user.weight`."""
    return key.split(".")[1]
