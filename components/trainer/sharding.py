"""Which rank owns which rows of which table."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torchrec import EmbeddingCollection

from thaw.components.config.training import Sharding
from thaw.components.trainer.torchrec_internals import (
    EmbeddingCollectionSharder,
    EmbeddingModuleShardingPlan,
    EmbeddingShardingPlanner,
    FixedPercentageStorageReservation,
    HardwareConfig,
    KernelConfig,
    ParameterConstraints,
    TopologyFactory,
    TrainerConfig,
    construct_module_sharding_plan,
    row_wise,
    table_wise,
)

RESERVED_FOR_THE_DENSE_HALF = 0.25
"""Share of a device's memory that the planner leaves to the dense half and its activations."""


def plan_sharding(
    collection: EmbeddingCollection,
    sharding: Mapping[str, Sharding],
    sharder: EmbeddingCollectionSharder,
    group: dist.ProcessGroup,
    device: torch.device,
) -> EmbeddingModuleShardingPlan:
    """Where each table of the collection goes.

    A pinned `table_wise` table goes to the rank of its position in the configuration, round and round. If any table is
    left to the planner ("auto", or not named), the planner places all of them, the pins being its constraints.
    Collective where the planner runs: all ranks of the group must call.
    """
    world_size = group.size()
    names = [config.name for config in collection.embedding_configs()]
    kinds = {name: sharding.get(name, "auto") for name in names}
    if "auto" in kinds.values():
        return _ask_planner(collection, kinds, sharder, group, device)
    place = {
        name: table_wise(rank=i % world_size) if kinds[name] == "table_wise" else row_wise()
        for i, name in enumerate(names)
    }
    return construct_module_sharding_plan(
        collection, place, sharder=sharder, world_size=world_size, device_type=device.type
    )


def _ask_planner(
    collection: EmbeddingCollection,
    kinds: Mapping[str, Sharding],
    sharder: EmbeddingCollectionSharder,
    group: dist.ProcessGroup,
    device: torch.device,
) -> EmbeddingModuleShardingPlan:
    hardware = HardwareConfig()
    if device.type == "cuda":
        hardware = HardwareConfig(hbm_cap_bytes=torch.cuda.get_device_properties(device).total_memory)
    planner = EmbeddingShardingPlanner(
        topology=TopologyFactory.create_topology(
            TrainerConfig(world_size=group.size(), local_world_size=int(os.environ["LOCAL_WORLD_SIZE"])),
            hardware,
            KernelConfig(compute_device=device.type),
        ),
        storage_reservation=FixedPercentageStorageReservation(RESERVED_FOR_THE_DENSE_HALF),
        constraints={
            name: ParameterConstraints(
                sharding_types=["table_wise", "row_wise"] if kind == "auto" else [kind], compute_kernels=["fused"]
            )
            for name, kind in kinds.items()
        },
    )
    return planner.collective_plan(collection, [sharder], group).plan[""]


@dataclass(frozen=True)
class Piece:
    """A range of rows that a rank holds. Columns are never cut."""

    table: str
    start: int
    num_rows: int


def check_owners(held: Sequence[Iterable[Piece]], num_rows: Mapping[str, int]) -> None:
    """See to it that every row of every table has exactly one owner.

    Args:
        held: what each rank holds, by rank.
        num_rows: rows of every table.

    Raises:
        RuntimeError: a range of rows has no owner, or two; names table, rows and ranks.
    """
    by_table: dict[str, list[tuple[int, int, int]]] = {name: [] for name in num_rows}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            by_table[piece.table].append((piece.start, piece.start + piece.num_rows, rank))
    for table, ranges in by_table.items():
        reached, before = 0, -1
        end = (num_rows[table], num_rows[table], -1)
        for start, stop, rank in [*sorted(held_range for held_range in ranges if held_range[1] > held_range[0]), end]:
            if start > reached:
                raise RuntimeError(f"table {table}: rows {reached} to {start - 1} have no owner")
            if start < reached:
                both = f"rows {start} to {min(stop, reached) - 1} have two owners, ranks {before} and {rank}"
                raise RuntimeError(f"table {table}: {both}")
            reached, before = stop, rank
