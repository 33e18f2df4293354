"""Real ranks that run a function each, two of gloo on the CPU unless told otherwise, and the small model for them.

Batches are made of a seed alone, so that an oracle in another process has them too.
"""

import multiprocessing
import os
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)

WORLD = 2
DIM = 4
NUM_ROWS = {"t0": 20, "t1": 15, "t2": 12}
FEATURES = {"t0": ["f0"], "t1": ["f1", "f2"], "t2": ["f3"]}
KEYS = ["f0", "f1", "f2", "f3"]
NUM_DENSE = 3

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["thaw.components.trainer.semi_sync", "torchrec.models.dlrm"])
AFRESH = multiprocessing.get_context("spawn")
"""For CUDA: a process that was forked off one that has asked for GPUs can't use them."""


@dataclass
class Groups:
    """The process groups of a rank."""

    rank: int
    dense: dist.ProcessGroup
    sparse: dist.ProcessGroup
    device: torch.device


@dataclass
class Ids:
    """Something between a batch and its input."""

    kjt: KeyedJaggedTensor


@dataclass
class Batch:
    """A rank's share of a step."""

    source: dict[str, list[Ids]]
    dense: torch.Tensor
    label: torch.Tensor

    @property
    def kjt(self) -> KeyedJaggedTensor:
        return self.source["ids"][0].kjt

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        if device.type == "cpu":
            return self

        def move(part: Any) -> Any:
            return part.pin_memory().to(device, non_blocking=non_blocking)

        return Batch({"ids": [Ids(move(self.kjt))]}, move(self.dense), move(self.label))


def run_ranks(
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 120,
    world: int = WORLD,
    device: str = "cpu",
    backend: str = "gloo",
) -> list[Any]:
    """What `function(groups, *args)` gives on each rank; an exception, as its text, where it raised one, or None where
    the process died without a word."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            processes_of = PROCESSES if device == "cpu" else AFRESH
            ours, theirs = processes_of.Pipe()
            place = (rank, world, device, backend)
            process = processes_of.Process(target=_rank, args=(place, f"{folder}/store", theirs, function, args))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        said: list[Any] = [None] * world
        for _ in range(world):
            ready = wait([pipe for pipe in pipes if not pipe.closed], timeout_s)
            assert ready, f"no rank answers; so far they said {said}"
            for pipe in ready:
                rank = pipes.index(pipe)
                try:
                    said[rank] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    said[rank] = None
                pipe.close()
            if all(pipe.closed for pipe in pipes):
                break
        for process in processes:
            process.join(timeout_s)
            if process.is_alive():
                process.kill()
                process.join()
                raise AssertionError(f"a rank did not end; they said {said}")
        return said


def results(function: Callable[..., Any], *args: Any, **where: Any) -> list[Any]:
    """What the function gives on each rank, none of which fails."""
    said = run_ranks(function, *args, **where)
    for one in said:
        assert not isinstance(one, Failure), one.text
    assert None not in said or not where, f"a rank died without a word; they said {said}"
    return said


@dataclass
class Failure:
    """An exception of a rank."""

    kind: str
    message: str
    text: str


def _rank(
    place: tuple[int, int, str, str], store: str, pipe: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    rank, world, kind, backend = place
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if backend == "gloo" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
        device_id=None if backend == "gloo" else device,
    )
    groups = Groups(rank, dist.new_group(backend=backend), dist.new_group(backend=backend), device)
    try:
        said = function(groups, *args)
    except BaseException as error:
        said = Failure(type(error).__name__, str(error), "".join(traceback.format_exception(error)))
    pipe.send_bytes(pickle.dumps(said))  # by value: a tensor sent as it is lives on in this process alone
    pipe.close()
    if isinstance(said, Failure):
        os._exit(1)  # as the trainer does: the others may be waiting for this rank
    dist.barrier(device_ids=None if backend == "gloo" else [device.index])
    os._exit(0)


def make_batch(
    seed: int, rank: int, size: int = 6, *, longest: int = 3, weighted: bool = False, counter: bool = False
) -> Batch:
    """A batch of random ids, the same for the same arguments. `counter`: row 0 of t0 is named by one sample alone."""
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    lengths = torch.randint(0, longest + 1, (len(KEYS), size), generator=draw)
    if counter:
        lengths[0] = 1
    rows = {feature: NUM_ROWS[table] for table, features in FEATURES.items() for feature in features}
    values = [torch.randint(1, rows[key], (int(lengths[n].sum()),), generator=draw) for n, key in enumerate(KEYS)]
    if counter:
        values[0][0] = 0
    flat = torch.cat(values)
    kjt = KeyedJaggedTensor.from_lengths_sync(
        KEYS, flat, lengths.flatten(), torch.rand(len(flat), generator=draw) if weighted else None
    )
    dense = torch.rand(size, NUM_DENSE, generator=draw)
    return Batch({"ids": [Ids(kjt)]}, dense, (torch.rand(size, generator=draw) > 0.5).float())


def initial_table(name: str) -> torch.Tensor:
    draw = torch.Generator().manual_seed(sorted(NUM_ROWS).index(name))
    return torch.randn(NUM_ROWS[name], DIM, generator=draw) * 0.5


def shard(
    group: dist.ProcessGroup,
    kind: str = "pooled",
    sharding: Mapping[str, str] | None = None,
    optimizer: str = "sgd",
    lr: float = 1.0,
    tables: list[str] | None = None,
    mean: bool = False,
    device: torch.device | None = None,
) -> Any:
    """A sharded collection. Kinds: pooled, weighted, sequence. By default the tables lie on one rank each in turn."""
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder

    from thaw.components.trainer import torchrec_internals as torchrec_names

    names, world, unset = tables or list(NUM_ROWS), group.size(), torch.device("meta")
    device = device or torch.device("cpu")
    collection: nn.Module
    if kind == "sequence":
        collection = EmbeddingCollection(
            device=unset,
            tables=[
                EmbeddingConfig(
                    embedding_dim=DIM, num_embeddings=NUM_ROWS[name], name=name, feature_names=FEATURES[name]
                )
                for name in names
            ],
        )
        sharder: Any = EmbeddingCollectionSharder()
    else:
        pooling = PoolingType.MEAN if mean else PoolingType.SUM
        collection = EmbeddingBagCollection(
            device=unset,
            tables=[
                EmbeddingBagConfig(
                    embedding_dim=DIM,
                    num_embeddings=NUM_ROWS[name],
                    name=name,
                    feature_names=FEATURES[name],
                    pooling=pooling,
                )
                for name in names
            ],
            is_weighted=kind == "weighted",
        )
        sharder = EmbeddingBagCollectionSharder()
    fused = {"sgd": torch.optim.SGD, "adagrad": torchrec_names.RowWiseAdagrad}[optimizer]
    torchrec_names.apply_optimizer_in_backward(fused, collection.parameters(), {"lr": lr})
    kinds = sharding or {}
    plan = torchrec_names.construct_module_sharding_plan(
        collection,
        {
            name: torchrec_names.row_wise()
            if kinds.get(name) == "row_wise"
            else torchrec_names.table_wise(rank=int(kinds.get(name, n % world)))
            for n, name in enumerate(names)
        },
        sharder,
        local_size=world if device.type == "cpu" else min(world, torch.cuda.device_count()),  # ranks may share a GPU
        world_size=world,
        device_type=device.type,
    )
    env = torchrec_names.ShardingEnv.from_process_group(group)
    sharded = sharder.shard(collection, plan, env, device)
    for name, part in shards(sharded):
        start, num_rows = part.metadata.shard_offsets[0], part.metadata.shard_sizes[0]
        part.tensor.copy_(initial_table(name)[start : start + num_rows])
    return sharded


def shards(sharded: Any) -> Iterator[tuple[str, Any]]:
    for key, weight in sharded.state_dict().items():
        for part in weight.local_shards():
            yield key.split(".")[-2], part


def rows_here(sharded: Any) -> list[tuple[str, int, torch.Tensor]]:
    """Copies of this rank's pieces of tables: name, first row, rows."""
    return [
        (name, part.metadata.shard_offsets[0], part.tensor.detach().clone().cpu()) for name, part in shards(sharded)
    ]


def slots_here(sharded: Any) -> list[torch.Tensor]:
    state = sharded.fused_optimizer.state_dict()["state"]
    return [
        part.tensor.detach().clone().cpu()
        for key in sorted(state)
        for slot in sorted(state[key])
        for part in state[key][slot].local_shards()
    ]


class Scorer(nn.Module):
    """The dense half."""

    def __init__(self, num_features: int = len(KEYS)) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first = nn.Linear(num_features * DIM + NUM_DENSE, 5)
        self.last = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x))).squeeze(1)


class SmallModel(nn.Module):
    """Sharded modules under a dense half. No tracer gets through its forward."""

    def __init__(self, groups: Groups, **modules: Any) -> None:
        super().__init__()
        self.sharded = nn.ModuleDict(modules)
        self.frozen: tuple[str, ...] = ()
        self.dense = DistributedDataParallel(Scorer().to(groups.device), process_group=groups.dense)

    def rows(self, batch: Batch) -> dict[str, torch.Tensor]:
        """[B, DIM] by feature."""
        found: dict[str, torch.Tensor] = {}
        for name, module in self.sharded.items():
            with torch.set_grad_enabled(torch.is_grad_enabled() and name not in self.frozen):
                found.update(pooled(module(batch.kjt), len(batch.label)))
        return found

    def forward(self, batch: Batch) -> torch.Tensor:
        # On a GPU this would make the host wait for the device, and hide what goes wrong where it runs ahead.
        if batch.label.device.type == "cpu" and round(batch.label.sum().item()) < 0:
            raise AssertionError
        rows = self.rows(batch)
        logit = self.dense(torch.cat([*(rows[key] for key in KEYS), batch.dense], 1))
        return nn.functional.binary_cross_entropy_with_logits(logit, batch.label)


def pooled(output: Any, size: int) -> dict[str, torch.Tensor]:
    """[size, DIM] by feature; sequences are squashed row by row before they are summed."""
    found = {}
    for key, value in output.items() if hasattr(output, "items") else output.to_dict().items():
        if isinstance(value, torch.Tensor):
            found[key] = value
        else:
            sample = torch.repeat_interleave(value.lengths().long())
            found[key] = value.values().new_zeros(size, DIM).index_add(0, sample, torch.tanh(value.values()))
    return found


@contextmanager
def random_delays(module: Any, seed: int, chain_s: float, main_s: float) -> Iterator[Callable[[], None]]:
    """Let every link of the module, and every call of what is given, take a random time up to so many seconds."""
    draw_chain, draw_main = random.Random(seed), random.Random(seed + 1)

    def pause(draw: random.Random, longest_s: float) -> None:
        time.sleep(draw.choice([0, 0, longest_s / 4, longest_s]))

    def slowed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            pause(draw_chain, chain_s)
            return method(*args, **kwargs)

        return call

    module.input_dist = slowed(module.input_dist)
    module.compute_and_output_dist = slowed(module.compute_and_output_dist)
    try:
        yield lambda: pause(draw_main, main_s)
    finally:
        del module.input_dist, module.compute_and_output_dist
