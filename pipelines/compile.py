"""The pipeline as the YAML that Kubeflow takes."""

from pathlib import Path

from thaw.components.config import RunConfig


def compile_pipeline(config: RunConfig, path: Path, num_retries: int = 0) -> None:
    """Write the compiled pipeline; what it holds depends on the policies, the image and the retries alone."""
    from kfp.compiler import Compiler

    from thaw.pipelines.training import training_pipeline

    path.parent.mkdir(parents=True, exist_ok=True)
    Compiler().compile(training_pipeline(config, num_retries), str(path))
