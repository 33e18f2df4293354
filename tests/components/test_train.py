"""The entry of a rank, as torchrun calls it: in processes of its own, meeting through a store of their own."""

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thaw.components import events, storage
from thaw.components.lifeline import LAUNCHER_PID

sys.path.append(str(Path(__file__).parent / "trainer"))
from small_log import job, make_config, write_window
from worlds import PROCESSES


class Rank:
    """A process that runs `python -m thaw.components.train <job>` with the environment that torchrun gives."""

    def __init__(self, rank: int, port: int, job_uri: str, log: Path, **env: str) -> None:
        variables = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {name: str(value) for name, value in variables.items()}
        self.log = log
        self.process = PROCESSES.Process(target=_enter, args=(env, job_uri, str(log)), daemon=True)
        self.process.start()

    def exit_code(self) -> int | None:
        self.process.join(60)
        return self.process.exitcode

    def errors(self) -> list[dict[str, Any]]:
        found = [event for line in self.log.read_text().splitlines() if (event := events.parse(line))]
        return [event for event in found if event["event"] == "error"]


def _enter(env: dict[str, str], job_uri: str, log: str) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(env)
    sys.argv = ["train", job_uri]
    runpy.run_module("thaw.components.train", run_name="__main__")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def write_job(folder: Path, name: str, **fields: Any) -> str:
    spec = job(folder, make_config(folder), "train", name, policy="cotrain", **fields)
    uri = str(folder / f"{name}.json")
    storage.write_json(uri, spec.model_dump(mode="json"))
    return uri


def test_a_job_ends_with_the_figures_in_result_json(tmp_path: Path, port: int) -> None:
    write_window(tmp_path)
    uri = write_job(tmp_path, "good")
    ranks = [Rank(rank, port, uri, tmp_path / f"{rank}.log") for rank in (0, 1)]
    assert [rank.exit_code() for rank in ranks] == [0, 0], ranks[0].log.read_text()
    result = storage.read_json(str(tmp_path / "good" / "result.json"))
    assert (result["num_steps"], result["num_requests"]) == (3, 13)
    assert [step for step, _ in result["loss_curve"]] == [1, 2, 3]
    assert "Warning" not in ranks[0].log.read_text()


def test_an_exception_on_one_rank_ends_the_others_at_once_and_says_where_it_was(tmp_path: Path, port: int) -> None:
    window = write_window(tmp_path)
    uri = write_job(tmp_path, "job")
    lost = window.model_copy(update={"items": (window.items[0].model_copy(update={"uri": "/nowhere/items.parquet"}),)})
    storage.write_json(str(tmp_path / "lost.json"), lost.model_dump(mode="json"))
    spec = storage.read_json(uri)
    bad_uri = str(tmp_path / "bad.json")
    storage.write_json(bad_uri, {**spec, "window_uri": str(tmp_path / "lost.json")})
    ranks = [Rank(rank, port, name, tmp_path / f"{rank}.log") for rank, name in enumerate((uri, bad_uri))]
    assert [rank.exit_code() for rank in ranks] == [1, 1]
    (cause,), (consequence,) = ranks[1].errors(), ranks[0].errors()
    assert cause["rank"] == 1
    assert "/nowhere/items.parquet" in cause["message"]
    assert cause["where"].startswith("components/")
    assert "onnection" in consequence["message"]
    assert not (tmp_path / "job" / "result.json").exists()


# https://github.com/pytorch/pytorch/issues/73320
def test_ranks_of_two_jobs_that_meet_at_one_port_refuse_each_other_by_name(tmp_path: Path, port: int) -> None:
    write_window(tmp_path)
    uris = [write_job(tmp_path, name) for name in ("one", "two")]
    ranks = [Rank(rank, port, uri, tmp_path / f"{rank}.log") for rank, uri in enumerate(uris)]
    assert [rank.exit_code() for rank in ranks] == [1, 1]
    for rank in ranks:
        (error,) = rank.errors()
        assert error["type"] in ("RendezvousError", "DistNetworkError", "DistStoreError")
    messages = " ".join(error["message"] for rank in ranks for error in rank.errors())
    assert f"at 127.0.0.1:{port}" in messages
    assert "job-one" in messages
    assert "job-two" in messages


def test_a_rank_ends_with_its_launcher(tmp_path: Path, port: int) -> None:
    write_window(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as launcher:
        rank = Rank(0, port, write_job(tmp_path, "job"), tmp_path / "0.log", **{LAUNCHER_PID: str(launcher.pid)})
        assert rank.process.is_alive()
        launcher.kill()
        launcher.wait()
        assert rank.exit_code() == 1
    assert rank.errors() == []
