"""The speed of the semi-synchronous pipeline: all figures side by side, of one run, on two ranks.

    python tests/benchmarks/semi_sync [--quick] [--settings "60 ms" MLP ...] [--json figures.json]

As root, on two cores that do nothing else. Each rank is pinned to one core and lives in its own network namespace; the
two are joined by a link of a given rate and delay, which is a program of this benchmark (relay.c). The modes of a
setting take turns in blocks of some steps, in one pair of processes, so that a disturbance meets all of them alike. A
repetition in which others took more than a share of the cores is made again, as often as there are repetitions.

What a mode is, what is measured in which setting, and what it should come to: settings.py. Nothing is asserted: whether
a target was reached is printed, and the exit status is 0.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import link
import settings
from figures import Block, Figures
from settings import Setting

RANK = Path(__file__).with_name("rank.py")
TIMEOUT_S = 900


def measure(setting: Setting, relay: Path, folder: Path, options: argparse.Namespace) -> Figures:
    """Run two ranks through a setting."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        notes: dict[str, Any] = {"load_before": os.getloadavg()[0]}
        joined = None
        if setting.rate is not None:
            rate = replace(setting.rate, queue=options.queue)
            joined = stack.enter_context(link.link(relay, rate))
            notes["link"] = {"round_trip_ms": joined.round_trip_ms, "rate_mbit": joined.rate_mbit}
            print(
                f"  link of {rate}, checked: round trip {joined.round_trip_ms:.2f} ms, "
                f"one TCP stream {joined.rate_mbit:.0f} Mbit/s",
                flush=True,
            )
        job = {
            "setting": asdict(setting),
            "cores": cores,
            "namespaces": joined.namespaces if joined else None,
            "relay": joined.relay if joined else 0,
            "device": link.DEVICE if joined else "lo",
            "store": str(folder / "store"),
            "found": str(folder / "found.json"),
            "num_steps": options.steps,
            "num_repetitions": options.repetitions,
            "max_other_cores": options.max_other_cores,
            "max_disturbed": options.repetitions,
        }
        (folder / "store").unlink(missing_ok=True)
        job_path = folder / "job.json"
        job_path.write_text(json.dumps(job))
        with ranks(job_path, folder) as processes:
            wait(processes, folder)
        found = json.loads((folder / "found.json").read_text())
    figures = Figures([Block(**block) for block in found["blocks"]], notes=notes)
    figures.notes |= {"load_after": found["load"], "num_disturbed": found["num_disturbed"]}
    if len(setting.modes) == 1:
        figures.memory[setting.modes[0]] = max(found["memory"], key=lambda rank: rank["peak"])
    # Table-wise, half of the tables are on the other rank.
    parts = 1 if setting.sharding == "row_wise" else 2
    figures.gradient_bytes = setting.num_tables // parts * setting.batch_size * setting.dim * 4
    return figures


@contextmanager
def ranks(job_path: Path, folder: Path) -> Iterator[list[subprocess.Popen]]:
    """Both ranks' processes; none outlives this."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with ExitStack() as stack:
        processes = []
        for rank in range(2):
            said = stack.enter_context((folder / f"rank-{rank}.txt").open("w"))
            command = [sys.executable, RANK, job_path, str(rank)]
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=env)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def wait(processes: list[subprocess.Popen], folder: Path) -> None:
    """Until both have ended; the first that fails ends the benchmark."""
    end = time.monotonic() + TIMEOUT_S
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes) or time.monotonic() > end:
            break
        time.sleep(0.2)
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            why = "did not end in time" if process.returncode is None else f"ended with status {process.returncode}"
            said = (folder / f"rank-{rank}.txt").read_text()[-3000:]
            print(f"rank {rank} {why}; it said:\n{said}", file=sys.stderr)
    if any(process.returncode != 0 for process in processes):
        sys.exit(1)


def print_setting(setting: Setting, figures: Figures) -> None:
    """A line a mode."""
    notes = figures.notes
    print(
        f"  load average {notes['load_before']:.1f} before, {notes['load_after']:.1f} after (2 are the ranks'); others "
        f"kept {figures.other_cores():.2f} cores busy; repetitions made again: {notes['num_disturbed']}"
    )
    width = max(map(len, settings.MODES))
    print(f"  {'mode':{width}}{''.join(f'{head:>10}' for head in HEADS)}  = input dist + lookup + sparse backward")
    for mode in figures.modes():
        print(f"  {mode:{width}}{''.join(f'{cell:>10}' for cell in cells(mode, figures))}", flush=True)
    print()


HEADS = ("step", "median", "spread", "CPU", "sent", "plain/", "SemiSync/", "hidden", "wait", "dense", "chain")
LEGEND = """
step      ms, the mean of a block, then the median over repetitions; median: of all single steps; spread: of the blocks
CPU, sent a rank's process in a step, ms; a rank's network device in a step, MB
plain/    the plain loop's step over the mode's; SemiSync/: that of TorchRec's semi-synchronous pipeline
hidden    1 - (step - limit) / (plain - limit)
wait      ms a step that the main thread waited for rows, as the pipeline itself says; dense: of the dense half, which
          DDP's all-reduce ends; chain: of the links that run beside it
"""


def cells(mode: str, figures: Figures) -> Iterator[str]:
    """A mode's line."""
    others = figures.modes()
    means = [sum(map(sum, b.step_ms)) / sum(map(len, b.step_ms)) for b in figures.blocks if b.mode == mode]
    yield f"{figures.step_ms(mode):.1f}"
    yield f"{figures.median_single_step_ms(mode):.1f}"
    yield f"{min(means):.0f}-{max(means):.0f}"
    yield f"{figures.cpu_ms(mode):.1f}"
    yield f"{figures.sent_bytes(mode) / 1e6:.2f}"
    for other in (settings.PLAIN, settings.SEMI_SYNC):
        yield f"{figures.ratio(other, mode):.2f}" if other in others else ""
    yield f"{figures.hidden(mode):.2f}" if settings.LIMIT in others and mode != settings.PLAIN else ""
    if figures.has_rows(mode):
        for row in ("wait", "dense", "chain"):
            yield f"{figures.row_ms(mode, row):.1f}"
        yield "  = " + " + ".join(
            f"{figures.row_ms(mode, row):.1f}" for row in ("input dist", "lookup", "sparse backward")
        )


def print_targets(found: dict[str, Figures]) -> list[dict[str, Any]]:
    """Which were reached."""
    print("targets (reported, never asserted)")
    rows = []
    for target in settings.TARGETS:
        figures = found.get(target.setting)
        value = target.figure(figures) if figures is not None else None
        rows.append({"claim": target.claim, "setting": target.setting, "bound": target.bound, "value": value})
        if value is not None:
            bound = f"{'>=' if target.is_floor else '<='} {target.bound:.2f}"
            verdict = "reached" if target.is_reached(value) else "NOT REACHED"
            print(f"  {target.setting:13} {target.claim:52} {value:6.3f}   {bound}   {verdict}")
    return rows


def measure_memory(relay: Path, folder: Path, options: argparse.Namespace) -> Figures:
    """The peak of each mode in a world of its own."""
    found = Figures()
    for mode in settings.MEMORY_MODES:
        setting = replace(settings.LONG, name="memory", modes=(mode,))
        few = argparse.Namespace(**{**vars(options), "repetitions": 1, "max_other_cores": float("inf")})
        found.memory |= measure(setting, relay, folder, few).memory
    plain = found.memory[settings.PLAIN]
    for mode, memory in found.memory.items():
        print(
            f"  {mode:28} peak {memory['peak'] / 1e6:7.1f} MB, {memory['peak'] / plain['peak']:.3f} of plain; without "
            f"the {memory['before'] / 1e6:.0f} MB before the model was built: "
            f"{(memory['peak'] - memory['before']) / (plain['peak'] - plain['before']):.3f} of plain"
        )
    print(flush=True)
    return found


def main() -> None:
    """Measure and print."""
    names = [setting.name for setting in settings.SETTINGS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two settings, one short repetition: does it run")
    parser.add_argument("--settings", nargs="+", choices=[*names, "memory"], default=[*names, "memory"])
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10, help="that count, in a block")
    parser.add_argument("--max-other-cores", type=float, default=0.3, help="above it a repetition is made again")
    parser.add_argument("--queue", choices=("fair", "fifo"), default="fair", help="of the link: see relay.c")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    if options.quick:
        options.settings, options.repetitions, options.steps = ["60 ms", "loopback"], 1, 6
        options.max_other_cores = float("inf")
    if (lack := link.missing()) is not None:
        parser.exit(1, f"this benchmark needs {lack}\n")
    if len(os.sched_getaffinity(0)) < 2:
        parser.exit(1, "this benchmark needs two cores, one for each rank\n")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the ends of all that is open
    for mode, meaning in settings.MODES.items():
        print(f"{mode:28} {meaning}")
    print(LEGEND)
    found: dict[str, Figures] = {}
    with link.scratch() as folder:
        relay = link.build_relay(folder)
        for setting in settings.SETTINGS:
            if setting.name in options.settings:
                print(
                    f"{setting.name}: {setting.num_tables} tables x {setting.num_rows} x {setting.dim}, "
                    f"{setting.sharding}, {setting.ids_a_bag} ids a bag, batch {setting.batch_size} a rank; dense half "
                    f"{setting.work}; {setting.rate or 'loopback'}",
                    flush=True,
                )
                found[setting.name] = measure(setting, relay, folder, options)
                print_setting(setting, found[setting.name])
        if "memory" in options.settings:
            print(f"memory: peak resident memory of a rank, setting {settings.LONG.name}", flush=True)
            found["memory"] = measure_memory(relay, folder, options)
    targets = print_targets(found)
    if options.json:
        options.json.write_text(json.dumps({"targets": targets} | {n: asdict(f) for n, f in found.items()}, indent=1))


if __name__ == "__main__":
    main()
