"""One rank of a setting: modes take turns, block by block, and rank 0 writes what it saw.

rank.py JOB.json RANK
"""

import json
import logging
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from link import die_with_parent, enter, sent_bytes

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
NUM_WARM = 3
"""Steps of a block before those that count: the pipeline stood still while others had their turn."""

NICE = -10
"""So that what others do on these cores disturbs the ranks less."""
SETTLE_S = 0.3
"""From the last step of a block to the moment when a pipeline has nothing on the wire any more: what is counted as sent
is what whole steps send."""


def busy_s() -> float:
    """CPU seconds that this machine has spent on anything, over all cores."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS_A_SECOND


def process_s(pid: int) -> float:
    """CPU seconds of another process; 0 for no process."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def memory_bytes(key: str) -> int:
    """A line of this process's status: VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def rows_ms(way: Any) -> dict[str, float]:
    """By row of the pipeline's timeline, over the steps since it was asked last."""
    from thaw.components.trainer.semi_sync.places import DENSE, INPUT_DIST, LOOKUP, SPARSE_BACKWARD, WAIT

    steps = way.figures()
    if not steps:
        return {}
    rows = {
        "wait": WAIT,
        "dense": DENSE,
        "input dist": INPUT_DIST,
        "lookup": LOOKUP,
        "sparse backward": SPARSE_BACKWARD,
    }
    found = {name: median(step.seconds.get(row, 0.0) for step in steps) * 1e3 for name, row in rows.items()}
    return found | {"chain": median(step.chain_s for step in steps) * 1e3}


def run_block(way: Any, num_steps: int) -> dict[str, Any]:
    """Some steps of one mode, after a few that don't count."""
    import torch.distributed as dist

    dist.barrier()
    for _ in range(NUM_WARM):
        way.step()
    way.figures()
    dist.barrier()
    step_ms = []
    cpu, begun = time.process_time(), time.perf_counter()
    for _ in range(num_steps):
        way.step()
        now = time.perf_counter()
        step_ms.append((now - begun) * 1e3)
        begun = now
    return {"step_ms": step_ms, "cpu_ms": (time.process_time() - cpu) / num_steps * 1e3, "rows_ms": rows_ms(way)}


def repetition(ways: dict[str, Any], number: int, job: dict[str, Any]) -> list[dict[str, Any]]:
    """One block of every mode; each repetition begins with another one."""
    import torch.distributed as dist

    names = list(ways)
    blocks = []
    for mode in names[number % len(names) :] + names[: number % len(names)]:
        dist.barrier()
        begun, busy, mine, relay = time.perf_counter(), busy_s(), time.process_time(), process_s(job["relay"])
        sent = sent_bytes(job["device"])
        block = run_block(ways[mode], job["num_steps"])
        dist.barrier()
        block["spent_s"] = time.process_time() - mine
        wall_s = time.perf_counter() - begun
        others_s = busy_s() - busy - (process_s(job["relay"]) - relay)
        time.sleep(SETTLE_S)
        block["sent_bytes"] = (sent_bytes(job["device"]) - sent) / (NUM_WARM + job["num_steps"])
        both: list[Any] = [None, None]
        dist.all_gather_object(both, (block, wall_s, others_s))
        _, wall_s, others_s = both[0]
        ranks = [block for block, _, _ in both]
        blocks.append(
            {
                "mode": mode,
                "repetition": number,
                "step_ms": [block["step_ms"] for block in ranks],
                "cpu_ms": [block["cpu_ms"] for block in ranks],
                "sent_bytes": [block["sent_bytes"] for block in ranks],
                "rows_ms": ranks[0]["rows_ms"],
                "other_cores": max(0.0, others_s - sum(block["spent_s"] for block in ranks)) / wall_s,
            }
        )
    return blocks


def main() -> None:
    """Run a rank to its end."""
    job = json.loads(Path(sys.argv[1]).read_text())
    rank = int(sys.argv[2])
    die_with_parent()
    if job["namespaces"]:
        enter(job["namespaces"][rank])
    os.sched_setaffinity(0, {job["cores"][rank]})
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    os.environ["GLOO_SOCKET_IFNAME"] = job["device"]
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed as dist
    from modes import make_batches, make_way
    from settings import Setting

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{job['store']}", rank=rank, world_size=2)
    setting = Setting(**{**job["setting"], "rate": None})
    batches = make_batches(setting, rank)
    before = memory_bytes("VmRSS")
    ways = {mode: make_way(mode, setting, batches) for mode in setting.modes}
    for way in ways.values():
        for _ in range(NUM_WARM):
            way.step()
        dist.barrier()
        time.sleep(SETTLE_S)
    kept: list[dict[str, Any]] = []
    num_disturbed = number = 0
    while number - num_disturbed < job["num_repetitions"]:
        blocks = repetition(ways, number, job)
        # Every rank has the same figures, and so decides alike.
        if median(b["other_cores"] for b in blocks) > job["max_other_cores"] and num_disturbed < job["max_disturbed"]:
            num_disturbed += 1
        else:
            kept += blocks
        number += 1
    peaks: list[Any] = [None, None]
    dist.all_gather_object(peaks, {"before": before, "peak": memory_bytes("VmHWM")})
    for way in ways.values():
        way.close()
    dist.barrier()
    if rank == 0:
        found = {"blocks": kept, "memory": peaks, "num_disturbed": num_disturbed, "load": os.getloadavg()[0]}
        Path(job["found"]).write_text(json.dumps(found))
    os._exit(0)  # gloo's threads have nothing left to say


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without a thought for the other rank, which may be waiting for this one
