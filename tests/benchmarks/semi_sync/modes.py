"""The ways to train: each takes the same model, batches and groups, and gives a function that makes one step."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import settings
import torch
import torch.distributed as dist
import torchrec
from torch import nn
from torch.distributed import _remote_device
from torch.nn.parallel import DistributedDataParallel
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist, runtime_forwards
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSemiSync
from torchrec.distributed.types import ShardingEnv
from torchrec.streamable import Pipelineable

from thaw.components.trainer import torchrec_internals as internals
from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward
from thaw.components.trainer.semi_sync.measure import StepFigures

NUM_DENSE = 13
NUM_BATCHES = 12
"""Different ones; they come again."""


@dataclass
class Batch(Pipelineable):
    """A rank's share of a step."""

    dense: torch.Tensor
    ids: KeyedJaggedTensor
    label: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.dense.to(device), self.ids.to(device), self.label.to(device))

    def record_stream(self, stream: torch.Stream) -> None:
        pass

    def pin_memory(self) -> "Batch":
        return self


class Sleep(torch.autograd.Function):
    """Passes its input on, after a while: a stand-in for work that an accelerator would do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds * 2 / 3)
        return gradient, None


class DenseHalf(nn.Module):
    """A bottom for the dense features, and a top over all."""

    def __init__(self, setting: settings.Setting) -> None:
        super().__init__()
        torch.manual_seed(7)
        width, dim = setting.hidden, setting.dim
        self.seconds = setting.sleep_ms / 1e3
        self.bottom = nn.Sequential(nn.Linear(NUM_DENSE, width), nn.ReLU(), nn.Linear(width, dim))
        self.top = nn.Sequential(
            nn.Linear(dim * (setting.num_tables + 1), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, rows: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        x = torch.cat([rows, self.bottom(dense)], dim=1)
        if self.seconds:
            x = Sleep.apply(x, self.seconds)
        return self.top(x).squeeze(1)


class Model(nn.Module):
    """Sharded tables under a dense half. TorchRec's pipelines can trace it."""

    def __init__(self, tables: nn.Module, dense: nn.Module, keys: list[str], is_frozen: bool) -> None:
        super().__init__()
        self.tables, self.dense, self.keys, self.is_frozen = tables, dense, keys, is_frozen

    def forward(self, batch: Batch) -> torch.Tensor:
        if self.is_frozen:
            with torch.no_grad():
                rows = self.tables(batch.ids)
        else:
            rows = self.tables(batch.ids)
        by_key = rows.to_dict()  # a split, whose backward pass is one concatenation
        flat = torch.cat([by_key[key] for key in self.keys], dim=1)
        return nn.functional.binary_cross_entropy_with_logits(self.dense(flat, batch.dense), batch.label)


def make_batches(setting: settings.Setting, rank: int) -> list[Batch]:
    """Random ids, every bag of one length."""
    draw = torch.Generator().manual_seed(rank)
    keys = [f"f{n}" for n in range(setting.num_tables)]
    num_bags = setting.num_tables * setting.batch_size
    return [
        Batch(
            torch.rand(setting.batch_size, NUM_DENSE, generator=draw),
            KeyedJaggedTensor.from_lengths_sync(
                keys,
                torch.randint(0, setting.num_rows, (num_bags * setting.ids_a_bag,), generator=draw),
                torch.full((num_bags,), setting.ids_a_bag),
            ),
            (torch.rand(setting.batch_size, generator=draw) > 0.5).float(),
        )
        for _ in range(NUM_BATCHES)
    ]


def shard_tables(setting: settings.Setting, group: dist.ProcessGroup) -> Any:
    """The tables over the ranks of a group, with row-wise Adagrad fused into their backward pass."""
    world_size = group.size()
    collection = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=f"t{n}",
                embedding_dim=setting.dim,
                num_embeddings=setting.num_rows,
                feature_names=[f"f{n}"],
            )
            for n in range(setting.num_tables)
        ],
    )
    internals.apply_optimizer_in_backward(torchrec.optim.RowWiseAdagrad, collection.parameters(), {"lr": 0.01})
    sharder = EmbeddingBagCollectionSharder()
    plan = internals.construct_module_sharding_plan(
        collection,
        {
            f"t{n}": internals.row_wise()
            if setting.sharding == "row_wise" and world_size > 1
            else internals.table_wise(rank=n % world_size)
            for n in range(setting.num_tables)
        },
        sharder,
        local_size=world_size,
        world_size=world_size,
        device_type="cpu",
    )
    for parameter in plan.values():
        for shard in parameter.sharding_spec.shards:
            # The plan counts ranks in the group, and the shards' placement counts them in the world.
            shard.placement = _remote_device(f"rank:{dist.get_global_rank(group, shard.placement.rank())}/cpu")
    sharded = sharder.shard(collection, plan, ShardingEnv.from_process_group(group), torch.device("cpu"))
    for weight in sharded.state_dict().values():
        for part in weight.local_shards():
            part.tensor.uniform_(-0.05, 0.05)
    return sharded


def patch_semi_sync() -> None:
    """Let TrainPipelineSemiSync run on CPU: it takes streams, and the device of a stream, for granted.

    All else of it stays as it is. Read in torchrec 1.8.0.
    """
    made = runtime_forwards.BaseForward.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self._device = torch.device("cpu")

    runtime_forwards.BaseForward.__init__ = make
    torch.cpu.current_stream = lambda *_: None
    for kind in (torchrec.KeyedTensor, torchrec.KeyedJaggedTensor):
        kind.record_stream = lambda *_: None


@dataclass
class Way:
    """A mode that is ready to train."""

    step: Callable[[], None]
    """Trains one batch."""
    figures: Callable[[], list[StepFigures]] = list
    """What our pipeline says of the steps since it was asked last."""
    close: Callable[[], None] = lambda: None


def make_way(mode: str, setting: settings.Setting, batches: list[Batch]) -> Way:
    """Build the model anew, with groups of its own. Collective: all ranks build the same mode."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone = [dist.new_group([n], backend="gloo") for n in range(world_size)][rank]
    sparse, dense = dist.new_group(backend="gloo"), dist.new_group(backend="gloo")
    if mode in (settings.LIMIT, settings.DENSE_LIMIT):
        sparse = alone
    if mode == settings.LIMIT:
        dense = alone
    model = Model(
        shard_tables(setting, sparse),
        DistributedDataParallel(DenseHalf(setting), process_group=dense),
        [f"f{n}" for n in range(setting.num_tables)],
        is_frozen=mode in (settings.FROZEN, settings.PLAIN_FROZEN),
    )
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.01)
    endless = itertools.cycle(batches)

    if mode in (settings.SPARSE_DIST, settings.SEMI_SYNC):
        return _torchrec(mode, model, optimizer, endless)
    if mode in (settings.OURS, settings.SYNCHRONOUS, settings.FROZEN):
        forward = PrefetchingForward(
            model,
            optimizer,
            group=sparse,
            staleness=0 if mode == settings.SYNCHRONOUS else 1,
            frozen=("tables",) if mode == settings.FROZEN else (),
        )
        loop = _loop(model, optimizer, LookaheadLoader(endless, forward))
        done = forward.figures.done

        def close() -> None:
            loop.close()
            forward.close()

        return Way(lambda: next(loop), lambda: [done.popleft() for _ in range(len(done))], close)
    loop = _loop(model, optimizer, endless)
    return Way(lambda: next(loop))


def _loop(model: Model, optimizer: torch.optim.Optimizer, loader: Any) -> Iterator[None]:
    """The user's loop, a batch at a time."""
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def _torchrec(mode: str, model: Model, optimizer: torch.optim.Optimizer, endless: Iterator[Batch]) -> Way:
    def forward(batch: Batch | None) -> tuple[torch.Tensor, torch.Tensor]:
        loss = model(batch)
        return loss, loss.detach()

    if mode == settings.SEMI_SYNC:
        patch_semi_sync()
        pipeline = TrainPipelineSemiSync(model, optimizer, torch.device("cpu"), start_batch=0, custom_model_fwd=forward)
    else:
        pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"), custom_model_fwd=forward)
    return Way(lambda: pipeline.progress(endless))
