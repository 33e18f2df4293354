"""The pipelines as the YAML that Kubeflow takes."""

from pathlib import Path
from typing import TYPE_CHECKING

from thaw.components import runs
from thaw.components.config import RunConfig

if TYPE_CHECKING:
    from kfp.dsl.base_component import BaseComponent


SCHEDULED_KINDS = ("scheduled", "scheduled-backbone")
"""Of pipelines whose date comes from a schedule."""


def compile_pipeline(config: RunConfig, path: Path, num_retries: int = 0, kind: str = "whole") -> None:
    """Write a compiled pipeline; what it holds depends on the kind, the policies, the image and the retries alone.

    Args:
        config: The run's configuration.
        path: Where to write it.
        num_retries: How often KFP tries a failed step again.
        kind: As of `build_pipeline`.

    Raises:
        ValueError: there is no such kind or stage.
    """
    from kfp.compiler import Compiler

    pipeline = build_pipeline(config, num_retries, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    Compiler().compile(pipeline, str(path))


def build_pipeline(config: RunConfig, num_retries: int = 0, kind: str = "whole") -> "BaseComponent":
    """A pipeline.

    Args:
        config: The run's configuration.
        num_retries: How often KFP tries a failed step again.
        kind: `whole`; `backbone`, which publishes one; `from:<stage>` or `stage:<stage>`, which builds on what another
            run left, with `backbone:` before it if that published one; `scheduled` or `scheduled-backbone`, whose
            date comes from a schedule.

    Raises:
        ValueError: there is no such kind or stage.
    """
    from thaw.pipelines.training import scheduled_pipeline, stage_pipeline, training_pipeline

    if kind in SCHEDULED_KINDS:
        return scheduled_pipeline(config, num_retries, kind.removeprefix("scheduled").removeprefix("-") or "whole")
    try:
        first = runs.config_stages(config, kind)[0]
    except ValueError as error:
        is_unknown = ":" not in kind and kind != "backbone"
        raise ValueError(f"{error}; {' or '.join(SCHEDULED_KINDS)}" if is_unknown else str(error)) from None
    if first == "select-window":
        return training_pipeline(config, num_retries, kind)
    return stage_pipeline(config, kind, num_retries)
