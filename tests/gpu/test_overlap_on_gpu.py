"""A trace of a few steps on CUDA: what the chain does beside the dense half, and in which order.

The trace is written to the path in THAW_GPU_TRACE, if that is set; chrome://tracing and Perfetto show it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from delays import rest
from two_ranks import Groups, SmallModel, make_batch, results, shard

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NUM_BATCHES = 12
DENSE_MS = 100
"""Of the kernel in the middle of the dense half: longer than the host takes to issue a step, the profiler on."""
SETTLED = range(4, NUM_BATCHES - 2)
"""Batches beside whose dense half both neighbours' links are looked for: after the profiler's own start."""
NEAR_S = 1e-5
"""Two events' times are read to about a microsecond."""


def trace(groups: Groups, path: str) -> list[tuple[str, int, float, float]]:
    """Row, batch, begin and end of every stretch of a small training, by the events of the pipeline itself."""
    from thaw.components.trainer.semi_sync import LookaheadLoader, PrefetchingForward

    device = groups.device
    sharded = shard(groups.sparse, "pooled", optimizer="adagrad", lr=0.1, device=device)
    model = SmallModel(groups, tables=sharded)
    optimizer = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    steps = range(NUM_BATCHES)
    forward = PrefetchingForward(model, optimizer, group=groups.sparse, device=device, trace_steps=steps)
    rest(device, 1.0)
    on = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        on.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=on) as profile:
        batches = [make_batch(number, groups.rank, 512) for number in range(NUM_BATCHES)]
        for batch in LookaheadLoader(batches, forward, device):
            loss = model(batch)
            rest(device, DENSE_MS)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        forward.close()
    profile.export_chrome_trace(path)
    return [(event.row, event.batch, event.begin_s, event.end_s) for event in forward.figures.trace]


@pytest.fixture(scope="module")
def path(gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(os.environ.get("THAW_GPU_TRACE") or tmp_path_factory.mktemp("trace") / "trace.json").absolute()


@pytest.fixture(scope="module")
def stretches(path: Path) -> list[tuple[str, int, float, float]]:
    return results(trace, str(path), world=1, device="cuda", backend="nccl", timeout_s=300)[0]


def check_order_and_overlap(stretches: list[tuple[str, int, float, float]]) -> None:
    """Pass stretches in which each batch's links follow one another, and run beside the dense half that they should."""
    begins: dict[tuple[str, int], float] = {}
    ends: dict[tuple[str, int], float] = {}
    for row, batch, begin, end in stretches:
        begins[row, batch] = min(begin, begins.get((row, batch), begin))
        ends[row, batch] = max(end, ends.get((row, batch), end))
    dense, update, look_up = "dense forward and backward", "sparse backward and update", "lookup and output dist"
    for batch in SETTLED:
        assert ends[dense, batch - 1] <= begins[update, batch - 1] + NEAR_S
        assert ends[update, batch - 1] <= begins[look_up, batch + 1] + NEAR_S
        assert ends["input dist", batch + 1] <= begins[look_up, batch + 1] + NEAR_S
        assert ends[look_up, batch + 1] <= begins[dense, batch + 1] + NEAR_S
        late_s = ends[look_up, batch + 1] - ends[dense, batch]
        assert late_s < 0, f"the rows of batch {batch + 1} came {late_s} s after the dense half of batch {batch}"
        early_s = begins[dense, batch] - ends[look_up, batch + 1]
        assert early_s < 0, f"the host issued the dense half of batch {batch} {early_s} s after the chain was through"


def test_each_link_runs_behind_the_one_before_it_and_beside_the_dense_half(
    stretches: list[tuple[str, int, float, float]],
) -> None:
    check_order_and_overlap(stretches)


def kernels_of(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "kernel"]


def test_the_tables_kernels_run_on_another_stream_in_the_midst_of_a_dense_kernel(stretches: Any, path: Path) -> None:
    kernels = kernels_of(path)
    if not kernels:
        pytest.skip(
            "the profiler recorded no kernel: CUPTI can't be used here (see NVreg_RestrictProfilingToAdminUsers)"
        )
    names = sorted({kernel["name"] for kernel in kernels})
    resting = [kernel for kernel in kernels if "spin" in kernel["name"]]
    of_tables = [kernel for kernel in kernels if "embedding" in kernel["name"].lower()]
    assert len(resting) >= NUM_BATCHES and of_tables, f"other kernels than expected: {names}"
    main = {kernel["args"]["stream"] for kernel in resting}
    tables = {kernel["args"]["stream"] for kernel in of_tables}
    assert len(main) == 1 and len(tables) == 1 and not main & tables
    hidden = [
        kernel["name"]
        for kernel in of_tables
        if any(
            dense["ts"] <= kernel["ts"] and kernel["ts"] + kernel["dur"] <= dense["ts"] + dense["dur"]
            for dense in resting
        )
    ]
    backward = [name for name in hidden if "backward" in name.lower()]
    forward = [name for name in hidden if "forward" in name.lower()]
    assert min(len(backward), len(forward)) >= len(SETTLED), f"beside the dense kernels there were only {hidden}"


def test_the_trace_has_the_words_of_the_timeline(stretches: Any, path: Path) -> None:
    labels = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert labels >= {"copy", "input dist", "lookup and output dist", "sparse backward and update", "wait"}
