"""The pipelines as the YAML that Kubeflow takes."""

from pathlib import Path

from thaw.components.config import RunConfig


def compile_pipeline(config: RunConfig, path: Path, num_retries: int = 0, kind: str = "whole") -> None:
    """Write a compiled pipeline; what it holds depends on the kind, the policies, the image and the retries alone.

    Args:
        config: The run's configuration.
        path: Where to write it.
        num_retries: How often KFP tries a failed step again.
        kind: `whole`; `backbone`, which publishes one; `from:<stage>` or `stage:<stage>`, which builds on what another
            run left; `scheduled` or `scheduled-backbone`, whose date comes from a schedule.

    Raises:
        ValueError: there is no such kind or stage.
    """
    from kfp.compiler import Compiler

    from thaw.pipelines.training import scheduled_pipeline, stage_pipeline, training_pipeline

    if kind in ("scheduled", "scheduled-backbone"):
        pipeline = scheduled_pipeline(config, num_retries, kind.removeprefix("scheduled").removeprefix("-") or "whole")
    elif kind in ("whole", "backbone") or kind.endswith(":select-window"):
        pipeline = training_pipeline(config, num_retries, kind)
    else:
        pipeline = stage_pipeline(config, kind, num_retries)
    path.parent.mkdir(parents=True, exist_ok=True)
    Compiler().compile(pipeline, str(path))
