"""The replicas of a PyTorchJob as containers of a network: commands, arguments and variables of its manifest."""

import json
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from docker_engine import HOME, at_home, docker, exit_code, follow, made, read, run, started

from thaw.components.jobs import JobSpec
from thaw.components.launcher import pytorchjob
from thaw.components.launcher.job import TrainingJob

# The first test builds the image.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]
PORT = 23456


class Job(NamedTuple):
    """A job whose specification lies in the volume."""

    manifest: dict[str, Any]
    output_uri: str


@pytest.fixture
def network(image):
    with made("network") as name:
        yield name


@pytest.fixture
def job(image, volume, played, request):
    """The job of the run's stage train-cotrain once more, with an output of its own, and read by loader processes."""
    spec = JobSpec.model_validate_json(read(image, volume, f"{played.run_uri}/train-cotrain/attempt-1/job.json"))
    output_uri = str(HOME / request.node.name)
    config = {**spec.config, "training": {**spec.config["training"], "num_workers": 1}}
    spec = spec.model_copy(update={"output_uri": output_uri, "config": config})
    again = TrainingJob(played.config, spec, attempt=1)
    write = ["sh", "-c", f"mkdir {output_uri} && cat > {again.spec_uri}"]
    run(image, write, *at_home(volume), stdin=again.spec.model_dump_json())
    return Job(pytorchjob.render(again), output_uri)


def start_pods(stack, job, network, volume):
    """The containers of the job's pods, Master first."""
    name = job.manifest["metadata"]["name"]
    containers = []
    for pod in pytorchjob.pods(job.manifest, master_addr=f"{name}-master-0", master_port=PORT):
        variables = [part for item in pod.env.items() for part in ("--env", "=".join(item))]
        host = f"{name}-{pod.replica}"
        template = job.manifest["spec"]["pytorchReplicaSpecs"][pod.replica.partition("-")[0].title()]["template"]
        container, (shm,) = template["spec"]["containers"][0], template["spec"]["volumes"]
        shm_size = f"--shm-size={shm['emptyDir']['sizeLimit']}B"
        flags = [*at_home(volume), shm_size, f"--network={network}", f"--name={host}", f"--hostname={host}", *variables]
        containers.append(stack.enter_context(started(container["image"], pod.command, *flags)))
    return containers


def test_two_containers_meet_and_train_what_two_processes_trained(image, volume, network, played, job):
    with ExitStack() as stack:
        containers = start_pods(stack, job, network, volume)
        codes = [exit_code(container) for container in containers]
        assert codes == [0, 0], "".join(docker("logs", container).stdout for container in containers)
    here, there = (
        json.loads(read(image, volume, f"{folder}/result.json"))
        for folder in (job.output_uri, f"{played.run_uri}/train-cotrain/attempt-1")
    )
    assert here["checksums_after"] == there["checksums_after"]
    assert here["num_rows"] == there["num_rows"] > 0


def test_a_replica_that_is_told_to_end_ends_and_the_other_does_not_wait_for_it(image, volume, network, job):
    with ExitStack() as stack:
        master, worker = start_pods(stack, job, network, volume)
        assert any('"progress"' in line for line in follow(master))
        docker("stop", "--time", "120", worker)
        assert exit_code(worker) not in (0, 137)  # 137 would be the engine's own kill after the time of grace
        assert exit_code(master) not in (0, 137)
