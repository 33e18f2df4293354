"""A run on this machine: the compiled pipeline through kfp.local, shown live."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from thaw.components import storage
from thaw.components.config import RunConfig, to_parameter
from thaw.pipelines.compile import compile_pipeline
from thaw.pipelines.progress import Progress


class PipelineError(Exception):
    """The pipeline ended before its last step. The message says why as well as the driver knows it."""


def run_pipeline(
    config: RunConfig, run_uri: str, arguments: Mapping[str, str], progress: Progress, kind: str = "whole"
) -> None:
    """Run a pipeline on this machine, and return when its last step has succeeded.

    The full log is saved as `log.txt` in the run's folder, however the run ends.

    Args:
        config: The run's configuration.
        run_uri: Folder of the run.
        arguments: Of the pipeline, beside the configuration, the run's folder and the backend.
        progress: Shows the log's lines.
        kind: Of the pipeline (`compile_pipeline`).

    Raises:
        PipelineError: a step failed; later steps were not started.
    """
    arguments = {"config": to_parameter(config), "run_uri": run_uri, "backend": "local", **arguments}
    with tempfile.TemporaryDirectory(prefix="thaw-run-", ignore_cleanup_errors=True) as folder:
        pipeline_path, arguments_path, log_path = (
            Path(folder) / name for name in ("thaw.yaml", "arguments.json", "log")
        )
        compile_pipeline(config, pipeline_path, kind=kind)
        arguments_path.write_text(json.dumps(arguments))
        scratch = Path(folder, "tmp")
        scratch.mkdir()
        command = [sys.executable, "-u", "-m", "thaw.pipelines.driver", str(pipeline_path), str(arguments_path)]
        try:
            with log_path.open("w") as log, _driver(command, scratch) as driver:
                assert driver.stdout is not None
                for line in driver.stdout:
                    log.write(line)
                    progress.show(line)
                status = driver.wait()
        finally:
            storage.write_bytes(storage.join(run_uri, "log.txt"), log_path.read_bytes())
        if status:
            last_lines = [line for line in log_path.read_text().splitlines() if line.strip()][-20:]
            raise PipelineError("\n".join(last_lines) or f"the pipeline's driver ended with status {status}")


@contextmanager
def _driver(command: list[str], scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """The driver process. It doesn't outlive the block, and its steps, which watch it, don't outlive it.

    Args:
        command: Of the driver.
        scratch: Where it and its steps keep temporary files, so that none is left of those that are killed.
    """
    previous = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    driver = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
