"""What a training stage costs beside its steps, against an empty job of two torchrun agents.

    python tests/benchmarks/stage_overhead.py [--repeats 5]

Both are timed in turns in one run, from the start of the process to its end:

  empty   two torchrun agents of one rank each, which import torch, torchrec and fbgemm and meet in one barrier
  stage   the process of the step `train-cotrain`, as KFP starts it, on a window of one day

From the stage, the seconds of its steps (its own figure) are taken away; the rest is its fixed cost.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
EMPTY = """
import torch, torchrec, fbgemm_gpu, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
STEP = """
import json, sys
from types import SimpleNamespace
import kfp.dsl.executor_main
from thaw.components.train_epoch.step import run
arguments = json.loads(sys.argv[1])
artifacts = {name: SimpleNamespace(uri=arguments.pop(name), metadata={}) for name in ("window", "parent", "model")}
run(**arguments, **artifacts)
"""
OVERRIDES = ("data.window.num_days=1", "backbone={pretrain: {num_days: 1, num_epochs: 1}}", "recipe.policies=[cotrain]")


def empty_job(folder: Path) -> float:
    """Seconds of an empty job."""
    script = folder / "empty.py"
    script.write_text(EMPTY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begun = time.perf_counter()
    agents = [
        subprocess.Popen(
            [BIN / "torchrun", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--master-addr=127.0.0.1",
             f"--master-port={port}", script],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.DEVNULL,
        )
        for node in range(2)
    ]  # fmt: skip
    if any(agent.wait() for agent in agents):
        sys.exit("the empty job failed")
    return time.perf_counter() - begun


def stage(run_uri: str, config: str, number: int) -> tuple[float, float]:
    """Seconds of a training stage, and of the steps within."""
    arguments = {
        "config": config,
        "run_uri": run_uri,
        "backend": "local",
        "epoch": 0,
        "window": f"{run_uri}/select-window/attempt-1",
        "parent": f"{run_uri}/prepare-backbone/attempt-1",
        "model": "",
    }
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", STEP, json.dumps(arguments)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begun
    result = json.loads(Path(run_uri, "train-cotrain", f"attempt-{number}", "result.json").read_text())
    return seconds, result["seconds"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as name:
        sets = [part for override in OVERRIDES for part in ("--set", override)]
        subprocess.run([BIN / "thaw", "run", "--preset", "small", "--root", name, "--run-id", "r", *sets], check=True)
        run_uri = f"{name}/runs/r"
        config = json.dumps(json.loads(Path(run_uri, "run.json").read_text())["config"])
        empty_job(Path(name))
        rows = []
        for number in range(2, 2 + repeats):
            whole, steps = stage(run_uri, config, number)
            rows.append((empty_job(Path(name)), whole, steps))
    for empty, whole, steps in rows:
        fixed = whole - steps
        print(f"empty {empty:5.2f} s   stage {whole:5.2f} s, of which steps {steps:5.2f} s   fixed {fixed:5.2f} s")
    fixed_cost = statistics.median(whole - steps for _, whole, steps in rows)
    empty = statistics.median(row[0] for row in rows)
    print(f"median: fixed cost {fixed_cost:.2f} s, empty job {empty:.2f} s, difference {fixed_cost - empty:.2f} s")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
