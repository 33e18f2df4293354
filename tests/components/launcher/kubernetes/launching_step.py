"""A run on disk, ready for its first epoch, and the step that trains it, as a process."""

import datetime
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from thaw.components import storage
from thaw.components.config import RunConfig, load, to_parameter
from thaw.components.runs import stage
from thaw.components.select_window.window import Window

STAGE = "train-frozen"

# What kfp has a step's container do.
PROGRAM = """
import json, sys
from types import SimpleNamespace
from thaw.components.train_epoch import step
config, run_uri, window, parent = sys.argv[1:]
window, parent, model = (SimpleNamespace(uri=uri, metadata={}) for uri in (window, parent, None))
step.run(config, run_uri, "kubernetes", 0, window, parent, model)
print(json.dumps({"uri": model.uri, "metadata": model.metadata}))
"""


@dataclass
class LaunchingStep:
    """Starts of the same step."""

    run_uri: str
    config: RunConfig
    window_uri: str
    backbone_uri: str

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """The step as a process, in a process group of its own."""
        # As in a pod: what a shell starts in the background ignores the interrupt.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        command = [sys.executable, "-c", PROGRAM, to_parameter(self.config)]
        return subprocess.Popen(
            [*command, self.run_uri, self.window_uri, self.backbone_uri],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            preexec_fn=heed,
        )

    def attempt(self, number: int) -> Path:
        """Folder of an attempt of the stage."""
        return Path(self.run_uri, STAGE, f"attempt-{number}")


def ready_run(folder: Path, *overrides: str) -> LaunchingStep:
    """A run whose window is selected, and whose backbone is there."""
    limits = ("cluster.poll_s=0.05", "cluster.start_timeout_s=60", "cluster.deadline_s=100")
    config = load("small", [*limits, *overrides])
    run_uri = str(folder / "runs" / "small-1")
    day = datetime.date(2026, 3, 2)
    window = Window(
        date=day,
        training_days=(day - datetime.timedelta(1),),
        evaluation_days=(day,),
        training=(),
        evaluation=(),
        fingerprint="sha256:0",
    )
    with stage(config, run_uri, "select-window") as select:
        storage.create_bytes(storage.join(select.uri, "window.json"), window.model_dump_json().encode())
        select.commit(outputs={"window": "window.json"}, window=window.summary())
    with stage(config, run_uri, "prepare-backbone", {"window": select.uri}) as backbone:
        backbone.commit(outputs={"model": "model"})
    return LaunchingStep(run_uri, config, select.uri, backbone.uri)


def told(output: str) -> dict[str, Any]:
    """What the step gave, by its last line."""
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document
