"""The process in which kfp.local runs a pipeline: `python -m thaw.pipelines.driver PIPELINE.yaml ARGUMENTS.json`.

A process of its own, because kfp.local patches `print` and the root logger, and so that the command can end it.
"""

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

from thaw.components.launcher.processes import DRIVER_PID, die_with_parent


def main() -> None:
    """Run the pipeline, one step after the other; the exit status is not 0 if a step fails."""
    pipeline_path, arguments_path = sys.argv[1:]
    die_with_parent()
    os.environ[DRIVER_PID] = str(os.getpid())
    # kfp.local writes sys.executable over every `python3` in a step's arguments, a path's parts included. With this
    # name the replacement changes nothing, and the step finds the same interpreter first on PATH.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    sys.executable = "python3"
    warnings.simplefilter("ignore")

    from kfp import components, local

    with tempfile.TemporaryDirectory(prefix="thaw-kfp-") as pipeline_root:
        local.init(local.SubprocessRunner(use_venv=False), pipeline_root=pipeline_root, raise_on_error=True)
        pipeline = components.load_component_from_file(pipeline_path)
        try:
            pipeline(**json.loads(Path(arguments_path).read_text()))
        except RuntimeError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
