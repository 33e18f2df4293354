"""A compiled pipeline played task by task, as KFP's driver and launcher do: containers, commands, executor inputs."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from thaw.components.config import RunConfig
from thaw.pipelines.compile import compile_pipeline


@dataclass(frozen=True)
class Step:
    """What a task's container is started with."""

    task: str
    image: str
    command: list[str]
    """With its arguments, the executor input among them."""
    executor_input: dict[str, Any]

    @property
    def source(self) -> str:
        """Of the component's function."""
        return self.command[self.command.index("--executor_input") - 1]

    @property
    def output_path(self) -> str:
        """Where the step leaves what it gives."""
        return self.executor_input["outputs"]["outputFile"]


Execute = Callable[[Step], dict[str, Any]]
"""Runs a step; what it left in its output file."""


def compiled(config: RunConfig, path: Path) -> dict[str, Any]:
    """The pipeline of a run, as its YAML holds it."""
    compile_pipeline(config, path)
    return next(yaml.safe_load_all(path.read_text()))


def play(spec: Mapping[str, Any], parameters: Mapping[str, Any], folder: str, execute: Execute) -> dict[str, Any]:
    """Run a compiled pipeline's tasks one after the other; the outputs of each, by task.

    Args:
        spec: The pipeline.
        parameters: Its parameters; and what KFP puts in place of a placeholder, by the placeholder.
        folder: Where the steps leave their outputs.
        execute: Runs a step.
    """
    done: dict[str, Any] = {}
    for name, task in _ordered(spec["root"]["dag"]["tasks"]):
        component = spec["components"][task["componentRef"]["name"]]
        definitions = component.get("inputDefinitions", {}).get("parameters", {})
        inputs = _inputs(task.get("inputs", {}), definitions, parameters, done)
        executor = spec["deploymentSpec"]["executors"][component["executorLabel"]]
        if "importer" in executor:
            imported = {"artifacts": [_imported(executor["importer"], inputs)]}
            done[name] = {"artifacts": {"artifact": imported}, "parameters": {}}
            continue
        container = executor["container"]
        outputs = _outputs(component.get("outputDefinitions", {}), f"{folder}/{name}")
        executor_input = {"inputs": inputs, "outputs": outputs}
        given = json.dumps(executor_input)
        command = [word.replace("{{$}}", given) for word in (*container["command"], *container["args"])]
        written = execute(Step(name, container["image"], command, executor_input))
        artifacts = {**outputs["artifacts"], **written.get("artifacts", {})}
        done[name] = {"artifacts": artifacts, "parameters": written.get("parameterValues", {})}
    return done


def _ordered(tasks: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    waiting = dict(tasks)
    while waiting:
        ready = next(name for name, task in waiting.items() if not waiting.keys() & set(task.get("dependentTasks", ())))
        yield ready, waiting.pop(ready)


def _inputs(
    given: Mapping[str, Any], definitions: Mapping[str, Any], parameters: Mapping[str, Any], done: Mapping[str, Any]
) -> dict[str, Any]:
    def parameter(name: str, source: Mapping[str, Any]) -> Any:
        value = resolved(source)
        # The YAML has all numbers as floats; KFP's driver, which is Go, writes those of integers without a fraction.
        return int(value) if definitions[name]["parameterType"] == "NUMBER_INTEGER" else value

    def resolved(source: Mapping[str, Any]) -> Any:
        if "componentInputParameter" in source:
            return parameters[source["componentInputParameter"]]
        if "taskOutputParameter" in source:
            output = source["taskOutputParameter"]
            return done[output["producerTask"]]["parameters"][output["outputParameterKey"]]
        constant = source["runtimeValue"]["constant"]
        return parameters.get(constant, constant) if isinstance(constant, str) else constant

    def artifact(source: Mapping[str, Any]) -> Any:
        output = source["taskOutputArtifact"]
        return done[output["producerTask"]]["artifacts"][output["outputArtifactKey"]]

    return {
        "parameterValues": {name: parameter(name, source) for name, source in given.get("parameters", {}).items()},
        "artifacts": {name: artifact(source) for name, source in given.get("artifacts", {}).items()},
    }


def _outputs(definitions: Mapping[str, Any], folder: str) -> dict[str, Any]:
    artifacts = {
        name: {"artifacts": [{"name": name, "type": definition["artifactType"], "uri": f"{folder}/{name}"}]}
        for name, definition in definitions.get("artifacts", {}).items()
    }
    return {
        "artifacts": artifacts,
        "parameters": {name: {"outputFile": f"{folder}/{name}"} for name in definitions.get("parameters", {})},
        "outputFile": f"{folder}/output.json",
    }


def _imported(importer: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    uri = importer["artifactUri"]
    name = uri.get("runtimeParameter")
    return {
        "name": "artifact",
        "type": importer["typeSchema"],
        "uri": inputs["parameterValues"][name] if name else uri["constant"],
        "metadata": importer.get("metadata", {}),
    }
