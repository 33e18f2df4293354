"""A compiled pipeline as Kubeflow's API takes it, and what is checked of a request before it is sent.

Kubeflow's own client sends any arguments, and the server finds an unknown or missing one when the run has begun.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from thaw.components.config import RunConfig
from thaw.components.config.document import MAX_PARAMETER_BYTES
from thaw.pipelines.compile import build_pipeline

MAX_PIPELINE_BYTES = 1_000_000
"""Kubeflow keeps the compiled pipeline and its arguments in one object of Kubernetes, of which etcd takes 1.5 MiB."""

_TYPES: dict[str, tuple[type, ...]] = {
    "STRING": (str,),
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (int, float),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict,),
}


@dataclass(frozen=True)
class Package:
    """A compiled pipeline."""

    spec: dict[str, Any]
    """The PipelineSpec."""
    platform: dict[str, Any]
    """The PlatformSpec, where there is one."""

    @property
    def document(self) -> dict[str, Any]:
        """As `pipeline_spec` of a request."""
        return {"pipeline_spec": self.spec, "platform_spec": self.platform} if self.platform else self.spec


def compiled(config: RunConfig, num_retries: int, kind: str) -> Package:
    """A pipeline, compiled.

    Args:
        config: The run's configuration.
        num_retries: How often KFP tries a failed step again.
        kind: As of `build_pipeline`.

    Raises:
        ValueError: there is no such kind or stage.
    """
    pipeline = build_pipeline(config, num_retries, kind)
    return Package(_document(pipeline.pipeline_spec), _document(pipeline.platform_spec))


def check_arguments(package: Package, arguments: Mapping[str, Any]) -> None:
    """Pass arguments that the pipeline takes, and that travel.

    Raises:
        ValueError: naming every one that is unknown, missing, of another type or too long.
    """
    name = package.spec["pipelineInfo"]["name"]
    inputs: dict[str, dict[str, Any]] = package.spec["root"].get("inputDefinitions", {}).get("parameters", {})
    faults = [f"{key}: no such input" for key in arguments if key not in inputs]
    for key, definition in inputs.items():
        if key not in arguments:
            if not definition.get("isOptional") and "defaultValue" not in definition:
                faults.append(f"{key}: missing")
            continue
        value, kind = arguments[key], definition["parameterType"]
        is_number_from_bool = isinstance(value, bool) and kind != "BOOLEAN"
        if not isinstance(value, _TYPES[kind]) or is_number_from_bool:
            faults.append(f"{key}: {value!r} is a {type(value).__name__}, and the pipeline takes {kind}")
        elif (size := _size(value)) > MAX_PARAMETER_BYTES:
            faults.append(f"{key}: {size} bytes, at most {MAX_PARAMETER_BYTES} can travel")
    if faults:
        takes = ", ".join(f"{key} ({definition['parameterType']})" for key, definition in inputs.items())
        raise ValueError(f"arguments of pipeline {name}: {'; '.join(faults)}. It takes {takes}")
    if (size := _size(package.document) + _size(arguments)) > MAX_PIPELINE_BYTES:
        raise ValueError(f"pipeline {name}: {size} bytes with its arguments, and {MAX_PIPELINE_BYTES} fit into the API")


def _document(message: Any) -> dict[str, Any]:
    # A protobuf's maps have no order of their own, and the same pipeline must read the same each time.
    document: dict[str, Any] = json.loads(json.dumps(json_format.MessageToDict(message), sort_keys=True))
    return document


def _size(value: Any) -> int:
    return len(value.encode() if isinstance(value, str) else json.dumps(value).encode())
