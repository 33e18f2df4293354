"""Scenes on a stage: small trainings that two ranks go through one after another, and what is told of each."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from two_ranks import WORLD, Batch, Groups, SmallModel, make_batch, rows_here, shard, shards


def told(scene: Callable[["Stage"], Any]) -> Callable[["Stage"], Any]:
    """Mark a function as a scene."""
    scene.is_told = True  # type: ignore[attr-defined]
    return scene


def play(groups: Groups, module: str) -> dict[str, Any]:
    """What the scenes of a test module give, by name."""
    said = {}
    for name, scene in list(vars(importlib.import_module(module)).items()):
        if getattr(scene, "is_told", False):
            stage = Stage(groups)
            said[name] = scene(stage)
            with error():
                stage.forward.close()
    return said


class Stage:
    """A fresh small model and its pipeline for each scene."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups

    def open(self, kind: str = "pooled", zero: bool = False, **options: Any) -> None:
        from thaw.components.trainer.semi_sync import PrefetchingForward

        self.tables = shard(self.groups.sparse, kind, {}, options.pop("fused", "sgd"))
        if zero:
            for _, part in shards(self.tables):
                part.tensor.zero_()
        self.model = SmallModel(self.groups, tables=self.tables)
        self.optimizer = torch.optim.SGD(self.model.dense.parameters(), lr=0.1)
        options.setdefault("optimizer", self.optimizer)
        self.forward = PrefetchingForward(self.model, group=self.groups.sparse, **options)

    def batches(self, number: int, **options: Any) -> list[Batch]:
        return [make_batch(n, self.groups.rank, **options) for n in range(number)]

    def over(self, batches: Any) -> Iterator[Batch]:
        from thaw.components.trainer.semi_sync import LookaheadLoader

        return iter(LookaheadLoader(batches, self.forward))

    def step(self, batch: Batch) -> float:
        loss = self.model(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def count(self, batch: Batch) -> float:
        """A step on the counting row; the updates that it had seen."""
        row = self.tables(batch.kjt)["f0"][0]
        (-row.sum()).backward()
        return row[0].item()

    def counted(self) -> float:
        """Updates that the counting row has had."""
        seen = [rows[0, 0].item() for name, start, rows in rows_here(self.tables) if name == "t0" and start == 0]
        everyone: list[Any] = [None] * WORLD
        dist.all_gather_object(everyone, seen, group=self.groups.dense)
        return sum(sum(of_rank) for of_rank in everyone)


@contextmanager
def error() -> Iterator[list[str]]:
    said: list[str] = []
    try:
        yield said
    except Exception as raised:
        said.append(f"{type(raised).__name__}: {raised}")
