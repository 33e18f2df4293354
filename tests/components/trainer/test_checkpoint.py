"""Checkpoints on real gloo ranks: four processes, whose first one, two, three or four are a world.

Each world builds the same small model (a table on one rank, a table cut by rows, one so small that a rank of four
holds none of its rows, a dense half with a replicated table), as the trainer does. The ranks write down what they saw;
the tests judge it.
"""

import hashlib
import json
import multiprocessing
import resource
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from thaw.components import config
from thaw.components.trainer import checkpoint

WORLD = 4
TIMEOUT = timedelta(seconds=60)
NUM_ROWS = {"user": 11, "item": 13, "tiny": 5}
DIM = 4
BATCH = 12
RESHARDINGS = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 3)]
# One server imports torch and TorchRec, and forks the ranks.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["thaw.components.trainer.tables", "thaw.components.trainer.checkpoint"])
DOCUMENT = config.load("small")


class SmallModel:
    """A sharded half and a replicated half; `step` trains on one global batch and gives its loss, the same on all
    ranks and at any number of them."""

    def __init__(self, group: dist.ProcessGroup, seed: int) -> None:
        from thaw.components.trainer.tables import ShardedTables, TableOptimizer, TableSpec

        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.tables = ShardedTables(
            tuple(TableSpec(name, rows, (name,)) for name, rows in NUM_ROWS.items()),
            DIM,
            TableOptimizer("rowwise_adagrad", lr=0.1),
            seed=seed,
            group=group,
            device=torch.device("cpu"),
            sharding={"user": "table_wise", "item": "row_wise", "tiny": "row_wise"},
        )
        torch.manual_seed(seed)
        self.dense = nn.ModuleDict({"segment": nn.Embedding(3, DIM), "head": nn.Linear(4 * DIM, 1)})
        self.optimizer = torch.optim.Adagrad(self.dense.parameters(), lr=0.1)

    def step(self, number: int) -> float:
        from torchrec import KeyedJaggedTensor

        draw = torch.Generator().manual_seed(number)
        ids = {name: torch.randint(rows, (BATCH,), generator=draw) for name, rows in NUM_ROWS.items()}
        segment, label = torch.randint(3, (BATCH,), generator=draw), torch.rand(BATCH, generator=draw)
        own = slice(self.rank * BATCH // self.size, (self.rank + 1) * BATCH // self.size)
        num_own = own.stop - own.start
        batch = KeyedJaggedTensor.from_lengths_sync(
            keys=list(ids),
            values=torch.cat([values[own] for values in ids.values()]),
            lengths=torch.ones(len(ids) * num_own, dtype=torch.int64),
        )
        rows = self.tables(batch)
        features = torch.cat([*(rows[name].values() for name in ids), self.dense["segment"](segment[own])], dim=1)
        score = self.dense["head"](features).squeeze(1)
        own_loss = nn.functional.binary_cross_entropy_with_logits(score, label[own], reduction="sum") / BATCH
        self.optimizer.zero_grad()
        (own_loss * self.size).backward()
        for parameter in self.dense.parameters():
            dist.all_reduce(parameter.grad, group=self.group)
            parameter.grad /= self.size
        self.optimizer.step()
        loss = own_loss.detach().clone()
        dist.all_reduce(loss, group=self.group)
        return loss.item()

    def tensors(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = dict(self.tables.tensors())
        for name, parameter in self.dense.named_parameters():
            found[f"dense/{name}"] = parameter.detach()
            for slot, value in self.optimizer.state[parameter].items():
                found[f"dense_optimizer/{name}/{slot}"] = value
        return found

    def digest(self) -> str:
        """sha256 over the whole tensors in the order of their names, gathered from all ranks."""
        own: dict[str, Any] = {}
        for name, tensor in self.tensors().items():
            if hasattr(tensor, "local_shards"):
                own[name] = [(s.metadata.shard_offsets[0], s.tensor.numpy()) for s in tensor.local_shards()]
            else:
                own[name] = [(0, tensor.numpy())] if self.rank == 0 else []
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, own, group=self.group)
        digest = hashlib.sha256()
        for name in sorted({name for parts in everyone for name in parts}):
            digest.update(name.encode())
            for _, part in sorted((p for parts in everyone for p in parts.get(name, [])), key=lambda p: p[0]):
                digest.update(part.tobytes())
        return digest.hexdigest()

    def shard_names(self) -> list[str]:
        return sorted(name for name, tensor in self.tables.tensors().items() if tensor.local_shards())


class Rank:
    """One of the four processes: takes part in the worlds that it belongs to, and notes facts down."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.folder = folder
        self.facts: dict[str, Any] = {}

    @contextmanager
    def world(self, name: str, size: int) -> Iterator[dist.ProcessGroup]:
        """The first `size` ranks as a world of their own."""
        rendezvous = f"file://{self.folder}/{name}.rendezvous"
        dist.init_process_group("gloo", init_method=rendezvous, rank=self.rank, world_size=size, timeout=TIMEOUT)
        yield dist.group.WORLD
        dist.barrier()
        dist.destroy_process_group()

    def uri(self, name: str) -> str:
        return str(self.folder / name)

    def names(self, folder: str) -> list[str]:
        return sorted(path.name for path in Path(self.uri(folder)).iterdir())

    def note(self, fact: str, value: Any) -> None:
        self.facts[fact] = value

    def note_error(self, fact: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:
            self.facts[fact] = f"{type(error).__name__}: {error}"
        else:
            self.facts[fact] = "no error"

    def save(self, model: SmallModel, name: str) -> None:
        checkpoint.save(self.uri(name), model.tensors(), document=DOCUMENT, progress={"step": 2}, group=model.group)

    def load(self, model: SmallModel, name: str, tensors: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
        return checkpoint.load(self.uri(name), tensors or model.tensors(), group=model.group)

    def trial(self) -> None:
        for size in (1, 2):
            if self.rank < size:
                with self.world(f"save-{size}", size) as group:
                    self.save_at(SmallModel(group, seed=0))
        for saved, size in RESHARDINGS:
            if self.rank < size:
                with self.world(f"load-{saved}-{size}", size) as group:
                    self.load_at(SmallModel(group, seed=1), saved)

    def save_at(self, model: SmallModel) -> None:
        model.step(0)
        model.step(1)
        self.save(model, f"by-{model.size}/step-2")
        self.note(f"digest at {model.size}", model.digest())
        if model.size == 2:
            self.try_to_save(model)
        self.note(f"losses at {model.size}", [model.step(2), model.step(3)])
        if model.size == 2:
            self.try_to_load(model)

    def load_at(self, model: SmallModel, saved: int) -> None:
        model.step(9)  # leaves another state in every slot
        trial = f"{saved}-{model.size}"
        self.note(f"digest before {trial}", model.digest())
        self.note(f"progress {trial}", self.load(model, f"by-{saved}/step-2"))
        self.note(f"digest {trial}", model.digest())
        self.note(f"shards {trial}", model.shard_names())
        self.note(f"losses {trial}", [model.step(2), model.step(3)])

    def try_to_save(self, model: SmallModel) -> None:
        mine = torch.full((2,), float(model.rank))
        arguments = {"document": DOCUMENT, "progress": {"rank": model.rank}, "group": model.group}
        checkpoint.save(self.uri("plain"), {"dense/mine": mine}, **arguments)
        progress = self.load(model, "plain", {"dense/mine": mine})
        self.note("plain tensor and progress", [mine.tolist(), progress])
        own = self.uri(f"disk-of-{model.rank}")
        self.note_error("save to two disks", lambda: checkpoint.save(own, model.tensors(), **arguments))
        self.note_error("save over a complete one", lambda: self.save(model, "by-2/step-2"))
        # A file of rank 1 may not grow past this: its write fails half way, as on a full disk.
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        if model.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
        self.note_error("save on a full disk", lambda: self.save(model, "full/step-2"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        self.note("files after a full disk", self.names("full/step-2"))
        dist.barrier(model.group)
        self.save(model, "full/step-2")
        dist.barrier(model.group)
        self.note("files after a later save", self.names("full/step-2"))
        if model.rank == 0:
            Path(self.uri("other")).mkdir()
            Path(self.uri("other/notes.txt")).write_text("mine")
        self.note_error("save among other files", lambda: self.save(model, "other"))

    def try_to_load(self, model: SmallModel) -> None:
        before = model.digest()
        tensors = model.tensors()
        without_slot = {name: tensor for name, tensor in tensors.items() if name != "table/item/momentum1"}
        self.note_error("load without a slot", lambda: self.load(model, "by-2/step-2", without_slot))
        more = {**tensors, "dense/new": torch.zeros(2)}
        self.note_error("load more than there is", lambda: self.load(model, "by-2/step-2", more))
        wider = {**tensors, "dense/head.bias": torch.zeros(2)}
        self.note_error("load another shape", lambda: self.load(model, "by-2/step-2", wider))
        doubled = {**tensors, "dense/head.bias": torch.zeros(1, dtype=torch.float64)}
        self.note_error("load another type", lambda: self.load(model, "by-2/step-2", doubled))
        other = DOCUMENT.model_copy(update={"seed": 5})
        self.note_error(
            "load under another seed",
            lambda: checkpoint.load(self.uri("by-2/step-2"), tensors, group=model.group, document=other),
        )
        self.note_error("load a folder that is not there", lambda: self.load(model, "nowhere"))
        shard = Path(self.uri("full/step-2/__1_0.distcp"))
        content = shard.read_bytes()
        dist.barrier(model.group)
        if model.rank == 0:
            shard.write_bytes(content[:-1])
        self.note_error("load a shard that is cut", lambda: self.load(model, "full/step-2"))
        if model.rank == 0:
            shard.unlink()
        self.note_error("load without a shard", lambda: self.load(model, "full/step-2"))
        self.note("tables are as before", model.digest() == before)
        if model.rank == 0:
            shard.write_bytes(bytes(len(content)))
        self.note_error("load a shard of zeros", lambda: self.load(model, "full/step-2"))
        tables = {
            name: tensor for name, tensor in tensors.items() if name in ("table/user", "table/item", "table/tiny")
        }
        self.note("load the tables alone", self.load(model, "by-2/step-2", tables))


def _run_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    member = Rank(rank, folder)
    try:
        member.trial()
    except BaseException:
        member.note("crash", traceback.format_exc())
        raise
    finally:
        (folder / f"facts-{rank}.json").write_text(json.dumps(member.facts))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank noted."""
    folder = tmp_path_factory.mktemp("world")
    ranks = [PROCESSES.Process(target=_run_rank, args=(rank, folder), daemon=True) for rank in range(WORLD)]
    for rank in ranks:
        rank.start()
    running = list(ranks)
    while running and not any(rank.exitcode for rank in ranks):
        wait([rank.sentinel for rank in running], timeout=200)
        running = [rank for rank in running if rank.exitcode is None]
    for rank in running:
        rank.kill()
        rank.join()
    noted = [json.loads(path.read_text()) for path in sorted(folder.glob("facts-*.json"))]
    assert [rank.exitcode for rank in ranks] == [0] * WORLD, [fact["crash"] for fact in noted if "crash" in fact]
    return noted


def on_ranks(facts: list[dict[str, Any]], fact: str, size: int) -> list[Any]:
    """A fact as each of the first `size` ranks noted it."""
    return [noted[fact] for noted in facts[:size]]


@pytest.mark.parametrize(("saved", "present"), RESHARDINGS)
def test_what_is_loaded_is_what_was_saved_bit_for_bit(facts, saved, present):
    # https://github.com/pytorch/pytorch/issues/79016, https://github.com/meta-pytorch/torchrec/issues/2534
    [expected] = set(on_ranks(facts, f"digest at {saved}", saved))
    assert expected not in on_ranks(facts, f"digest before {saved}-{present}", present)
    assert set(on_ranks(facts, f"digest {saved}-{present}", present)) == {expected}
    assert on_ranks(facts, f"progress {saved}-{present}", present) == [{"step": 2}] * present


@pytest.mark.parametrize(("saved", "present"), RESHARDINGS)
def test_training_goes_on_with_the_same_losses(facts, saved, present):
    for losses in on_ranks(facts, f"losses {saved}-{present}", present):
        assert losses == pytest.approx(facts[0][f"losses at {saved}"], abs=1e-6)


def test_the_trial_has_ranks_that_own_nothing_of_a_table(facts):
    assert "table/user" not in facts[1]["shards 1-2"]
    assert "table/user/momentum1" in facts[0]["shards 1-4"]
    assert all("table/item/momentum1" in noted["shards 1-4"] for noted in facts)


def test_rank_0_speaks_for_what_every_rank_has(facts):
    assert on_ranks(facts, "plain tensor and progress", 2) == [[[0.0, 0.0], {"rank": 0}]] * 2


SAVE_FAILURES = {
    "save over a complete one": ["by-2/step-2", "never overwritten"],
    "save on a full disk": ["full/step-2", "2 ranks", "rank 1", "__1_0.distcp", "File too large"],
    "save to two disks": ["disk-of-0", "__1_0.distcp is not there for rank 0: the ranks don't share this folder"],
    "save among other files": ["other", "notes.txt"],
}
LOAD_FAILURES = {
    "load without a slot": ["by-2/step-2", "saved by 2 ranks", "on 2 ranks", "the model has no table/item/momentum1"],
    "load more than there is": ["by-2/step-2", "saved by 2 ranks", "on 2 ranks", "it has no dense/new"],
    "load another shape": ["dense/head.bias is float32[1] there, and float32[2] in the model"],
    "load another type": ["dense/head.bias is float32[1] there, and float64[1] in the model"],
    "load under another seed": ["by-2/step-2", "saved by 2 ranks", "on 2 ranks", "seed", "0", "5"],
    "load a folder that is not there": ["nowhere", "on 2 ranks", "complete.json is missing"],
    "load a shard that is cut": ["full/step-2", "saved by 2 ranks", "on 2 ranks", "__1_0.distcp has"],
    "load without a shard": ["full/step-2", "saved by 2 ranks", "on 2 ranks", "__1_0.distcp is missing"],
    "load a shard of zeros": ["full/step-2", "saved by 2 ranks", "on 2 ranks", "rank 1: ", "__1_0.distcp: cannot read"],
}


@pytest.mark.parametrize("trial", [*SAVE_FAILURES, *LOAD_FAILURES])
def test_a_failure_is_the_same_error_on_every_rank(facts, trial):
    first, second = on_ranks(facts, trial, 2)
    assert first == second
    assert first.startswith("CheckpointError: ")
    for part in (SAVE_FAILURES | LOAD_FAILURES)[trial]:
        assert part in first


def test_a_refused_checkpoint_leaves_the_model_as_it_was(facts):
    assert on_ranks(facts, "tables are as before", 2) == [True, True]


def test_a_half_written_file_is_removed_and_a_later_save_leaves_a_clean_folder(facts):
    assert "complete.json" not in facts[0]["files after a full disk"]
    assert "__1_0.distcp" not in facts[0]["files after a full disk"]
    assert facts[0]["files after a later save"] == sorted(
        [".metadata", "__0_0.distcp", "__1_0.distcp", "complete.json", "config.json", "progress.json"]
    )


def test_tables_can_be_loaded_without_the_rest(facts):
    assert on_ranks(facts, "load the tables alone", 2) == [{"step": 2}] * 2
