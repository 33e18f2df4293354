"""Plays the tasks of a compiled pipeline as Kubeflow Pipelines does: each a pod, under the pipelines' service account.

The driver's part is played here: it resolves a task's inputs from the compiled document, and keeps its outputs. The
launcher's part is played in the pod: it runs the task's command, which has the executor's input as an argument, hands
signals on, and tells the outputs at the end of the log. A task is tried again only by another `start`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from api_server import PODS, Api
from kubernetes.client import ApiException
from waiting import eventually

SERVICE_ACCOUNT = "pipeline-runner"
_MARK = "outputs of the task: "
_LAUNCHER = f"""
import os, signal, subprocess, sys
output_file, *words = sys.argv[1:]
command = subprocess.Popen(words, start_new_session=True)
signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(command.pid, number))
status = command.wait()
if status == 0:
    print("\\n{_MARK}" + open(output_file).read(), flush=True)
sys.exit(status if status >= 0 else 128 - status)
"""


@dataclass(frozen=True)
class Ended:
    """How one try of a task ended."""

    exit_code: int
    log: str


class Player:
    """One run of a compiled pipeline.

    Args:
        api: The API server.
        namespace: Where the pods run.
        pipeline_path: The compiled pipeline.
        arguments: Of the pipeline.
        root_uri: Where Kubeflow would have the artifacts lie.
        scratch_path: For files in the pods.
        env: Set in every pod.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        pipeline_path: Path,
        arguments: dict[str, Any],
        root_uri: str,
        scratch_path: str,
        env: dict[str, str],
    ):
        spec = next(iter(yaml.safe_load_all(pipeline_path.read_text())))
        self._api = api
        self._namespace = namespace
        self._tasks = spec["root"]["dag"]["tasks"]
        self._components = spec["components"]
        self._executors = spec["deploymentSpec"]["executors"]
        defaults = spec["root"]["inputDefinitions"]["parameters"]
        self._arguments = {name: each["defaultValue"] for name, each in defaults.items() if "defaultValue" in each}
        self._arguments |= arguments
        self._root_uri = root_uri
        self._scratch_path = scratch_path
        self._env = env
        self._declared: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._num_tries: dict[str, int] = {}

    def order(self) -> list[str]:
        """The tasks, each behind those that it depends on."""
        order: list[str] = []
        while len(order) < len(self._tasks):
            order += [
                name
                for name, task in sorted(self._tasks.items())
                if name not in order and set(task.get("dependentTasks", ())) <= set(order)
            ]
        return order

    def run(self, *tasks: str) -> None:
        """Run tasks, one after the other.

        Raises:
            AssertionError: one failed.
        """
        for task in tasks:
            ended = self.finish(task, self.start(task))
            assert ended.exit_code == 0, f"{task} ended with {ended.exit_code}:\n{ended.log}"

    def start(self, task: str, **parameters: Any) -> str:
        """Start a try of a task; its pod.

        Args:
            task: Its name.
            parameters: In place of what the pipeline gives it.
        """
        number = self._num_tries[task] = self._num_tries.get(task, 0) + 1
        component = self._components[self._tasks[task]["componentRef"]["name"]]
        container = self._executors[component["executorLabel"]]["container"]
        executor_input = self._executor_input(task, component, parameters)
        words = [*container["command"], *container["args"]]
        given = [json.dumps(executor_input) if word == "{{$}}" else word for word in words]
        variables = [{"name": name, "value": value} for name, value in self._env.items()]
        for name in ("name", "uid"):
            field = {"fieldRef": {"fieldPath": f"metadata.{name}"}}
            variables.append({"name": f"KFP_POD_{name.upper()}", "valueFrom": field})
        scratch = [{"name": name, "mountPath": f"/{name}"} for name in ("gcs", "tmp")]
        pod = {
            "metadata": {"generateName": f"{task}-{number}-"},
            "spec": {
                "serviceAccountName": SERVICE_ACCOUNT,
                "restartPolicy": "Never",
                "volumes": [{"name": each["name"], "emptyDir": {}} for each in scratch],
                "containers": [
                    {
                        "name": "main",
                        "image": container["image"],
                        "command": ["python3", "-c", _LAUNCHER],
                        "args": [executor_input["outputs"]["outputFile"], *given],
                        "env": variables,
                        "volumeMounts": scratch,
                    }
                ],
            },
        }
        name = self._api.create(self._namespace, PODS, pod)["metadata"]["name"]
        self._declared[name] = executor_input["outputs"]["artifacts"]
        return name

    def finish(self, task: str, pod: str, timeout_s: float = 900) -> Ended:
        """Wait for a try's end; what it gave is the task's output from then on."""

        def ended() -> dict[str, Any] | None:
            found = self._api.get(self._namespace, PODS, pod)
            assert found is not None, f"pod {pod} is gone"
            return found if found["status"].get("phase") in ("Succeeded", "Failed") else None

        (container,) = eventually(ended, f"the end of {pod}", timeout_s)["status"]["containerStatuses"]
        log = self.log(pod)
        exit_code = container["state"]["terminated"]["exitCode"]
        if exit_code == 0:
            told = json.loads(log.rpartition(_MARK)[2])
            for name, output in self._declared[pod].items():
                output["artifacts"][0] |= told.get("artifacts", {}).get(name, {"artifacts": [{}]})["artifacts"][0]
            self._outputs[task] = told | {"artifacts": self._declared[pod]}
        return Ended(exit_code, log)

    def log(self, pod: str) -> str:
        """What a try has written; nothing before its container has started, or while its node does not know it yet."""
        try:
            return self._api.log(self._namespace, pod)
        except ApiException as error:
            if error.status not in (400, 404):
                raise
            return ""

    def run_until(self, task: str, pod: str, look: Callable[[], Any], what: str) -> None:
        """Wait for something to happen while a try runs.

        Raises:
            AssertionError: the try ended before.
        """

        def looked() -> Any:
            phase = self._api.get(self._namespace, PODS, pod)["status"].get("phase")
            found = look()
            assert found or phase not in ("Succeeded", "Failed"), self.log(pod)
            return found

        eventually(looked, f"{what} in {task}", timeout_s=600)

    def _executor_input(self, task: str, component: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        inputs = self._tasks[task].get("inputs", {})
        outputs = component.get("outputDefinitions", {})
        number = self._num_tries[task]
        scratch = f"{self._scratch_path}/{task}/{number}"
        return {
            "inputs": {
                "parameterValues": {
                    name: self._parameter(source) for name, source in inputs.get("parameters", {}).items()
                }
                | parameters,
                "artifacts": {name: self._artifact(source) for name, source in inputs.get("artifacts", {}).items()},
            },
            "outputs": {
                "parameters": {name: {"outputFile": f"{scratch}/{name}"} for name in outputs.get("parameters", {})},
                "artifacts": {
                    name: {
                        "artifacts": [
                            {
                                "name": name,
                                "type": artifact["artifactType"],
                                "uri": f"{self._root_uri}/{task}/{number}/{name}",
                                "metadata": {},
                            }
                        ]
                    }
                    for name, artifact in outputs.get("artifacts", {}).items()
                },
                "outputFile": f"{scratch}/output_metadata.json",
            },
        }

    def _parameter(self, source: dict[str, Any]) -> Any:
        if "runtimeValue" in source:
            constant = source["runtimeValue"]["constant"]
            # The compiler writes a whole number as a float; in protobuf's JSON, which the executor gets, it is none.
            return int(constant) if isinstance(constant, float) and constant.is_integer() else constant
        if "componentInputParameter" in source:
            return self._arguments[source["componentInputParameter"]]
        output = source["taskOutputParameter"]
        return self._outputs[output["producerTask"]]["parameterValues"][output["outputParameterKey"]]

    def _artifact(self, source: dict[str, Any]) -> dict[str, Any]:
        output = source["taskOutputArtifact"]
        return self._outputs[output["producerTask"]]["artifacts"][output["outputArtifactKey"]]
