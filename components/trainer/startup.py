"""What a rank does before it trains: software, device, the rendezvous, process groups, the watch on its launcher."""

import datetime
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from thaw.components.lifeline import LAUNCHER_PID, when_gone
from thaw.components.versions import VersionError, check_versions


class RendezvousError(RuntimeError):
    """The ranks that met are not those of one job."""


@dataclass(frozen=True)
class Ranks:
    """This rank among the others, and the groups that they speak in."""

    rank: int
    world_size: int
    device: torch.device
    world: dist.ProcessGroup
    """Counts, losses, checkpoints. On CUDA it speaks gloo too, for tensors of the host."""
    dense: dist.ProcessGroup
    """Gradients of the dense half."""
    sparse: dist.ProcessGroup
    """The tables' ids, rows and gradients."""


def check_software(device: Literal["cpu", "cuda"]) -> None:
    """Pass an environment that can train on this device.

    Raises:
        VersionError: in one line: another version than Thaw was locked with, fbgemm's build for another device, no GPU.
    """
    check_versions(device)
    import fbgemm_gpu

    variant = getattr(fbgemm_gpu, "__variant__", "unnamed")
    if (variant == "cpu") != (device == "cpu"):
        raise VersionError(f"training.device is {device}, and fbgemm_gpu is the {variant} build")
    if device == "cuda" and not torch.cuda.is_available():
        raise VersionError("training.device is cuda, and torch finds no GPU")


def quiet() -> None:
    """Keep from the log what torch and TorchRec say of each other's deprecated names: nothing that a run can mend."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Please use DTensor instead", category=FutureWarning)


@contextmanager
def joined(job: str, device: Literal["cpu", "cuda"], timeout_s: int, init_method: str = "env://") -> Iterator[Ranks]:
    """Meet the other ranks of the job, and part from them in the end.

    Args:
        job: name of the PyTorchJob; a rank that came with another one is refused before any collective.
        device: of the tensors.
        timeout_s: after this long without an answer a collective fails.
        init_method: where to meet; RANK, WORLD_SIZE and LOCAL_RANK are of torchrun's environment.

    Raises:
        RendezvousError: another job's rank was met.
    """
    from torch.distributed.rendezvous import rendezvous

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = datetime.timedelta(seconds=timeout_s)
    store = next(rendezvous(init_method, rank, world_size, timeout=timeout))[0]
    store.set_timeout(timeout)
    check_same_job(store, job, rank, world_size)

    on = torch.device("cpu")
    if device == "cuda":
        on = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(on)
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=None if device == "cpu" else on,
    )
    world = dist.group.WORLD
    assert world is not None
    yield Ranks(
        rank,
        world_size,
        on,
        world=world,
        dense=dist.new_group(backend=backend, timeout=timeout),
        sparse=dist.new_group(backend=backend, timeout=timeout),
    )
    # Not after an exception: there the others may never come, and the process ends at once.
    dist.barrier(device_ids=None if device == "cpu" else [on.index])
    dist.destroy_process_group()


def check_same_job(store: Store, job: str, rank: int, world_size: int) -> None:
    """See to it that all ranks of a rendezvous came for one job, each once. Every rank must call it.

    Raises:
        RendezvousError: names both jobs, or the rank that came twice.
    """
    here = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    own = f"{job} ({world_size} ranks)"
    times = store.add(f"thaw/came/{rank}", 1)
    store.set(f"thaw/job/{rank}/{times}", own)
    for other in range(world_size):
        for time in range(1, 1 + max(1, store.add(f"thaw/came/{other}", 0))):
            found = store.get(f"thaw/job/{other}/{time}").decode()
            if found != own or time > 1:
                raise RendezvousError(
                    f"rank {rank} of job {own} met rank {other} of job {found} at {here}: two jobs share this port; "
                    f"give each its own"
                )


def end_with_launcher() -> None:
    """Let this process end as soon as its launcher on this machine ends, however that ends. Elsewhere do nothing."""
    if pid := os.environ.get(LAUNCHER_PID):
        when_gone(int(pid), lambda: os._exit(1))
