"""Worlds of real ranks for tests: of gloo on the CPU, forked off a server that has imported the trainer; or on GPUs."""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from thaw.components.trainer.startup import Ranks, joined, quiet

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["worlds", "thaw.components.trainer.epoch", "thaw.components.trainer.pretrain"])
AFRESH = multiprocessing.get_context("spawn")
"""For CUDA: a process that was forked off one that has asked for GPUs can't use them."""
TIMEOUT_S = {"cpu": 60, "cuda": 240}


def run_world(world_size: int, act: Callable[..., Any], *args: Any, device: str = "cpu") -> list[Any]:
    """What `act(ranks, *args)` gives on each rank of a new world, by rank.

    Raises:
        AssertionError: a rank raised; with the traceback of the one that did so first.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            processes_of = PROCESSES if device == "cpu" else AFRESH
            receiver, sender = processes_of.Pipe(duplex=False)
            world = (rank, world_size, device)
            process = processes_of.Process(target=_be, args=(world, folder, sender, act, args), daemon=True)
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return _results(pipes, TIMEOUT_S[device])
        finally:
            for process in processes:
                process.kill()
                process.join()


def _results(pipes: Sequence[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in results], timeout_s)
        assert ready, f"only ranks {sorted(results)} of {len(pipes)} answered"
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                error, results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                error = "it ended without a word"
            assert error is None, f"rank {rank}: {error}"
    return [results[rank] for rank in range(len(pipes))]


def _be(world: tuple[int, int, str], folder: str, sender: Connection, act: Callable[..., Any], args: Any) -> None:
    import torch

    rank, world_size, device = world
    torch.set_num_threads(1)
    quiet()
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size)
    )
    try:
        with joined("test", device, TIMEOUT_S[device], f"file://{Path(folder, 'store')}") as ranks:
            result = act(ranks, *args)
        answer = (None, result)
    except BaseException:
        answer = (traceback.format_exc(), None)
    # Plain pickles: those of torch.multiprocessing hold tensors that die with their sender.
    sender.send_bytes(pickle.dumps(answer))
    sender.close()
    os._exit(0)


__all__ = ["Ranks", "run_world"]
