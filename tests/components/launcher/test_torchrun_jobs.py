import json
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from launcher_jobs import manifest_of

STEP = """
import json, sys
from thaw.components.launcher import local
local.run(json.load(open(sys.argv[1])), sys.argv[2], print)
"""
RANK = """
import os, sys
print(sys.argv[1], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_PORT"])
"""


# https://github.com/pytorch/pytorch/issues/126510
def test_two_jobs_at_once_meet_apart_though_the_usual_ports_are_taken(
    script: Callable[..., list[str]], tmp_path: Path
) -> None:
    step = script(STEP, program=sys.executable)
    with ExitStack() as stack:
        for port in (29500, 29400):
            with suppress(OSError):  # Somebody else's listener does as well.
                stack.enter_context(socket.create_server(("", port)))
        jobs = []
        for job in ("one", "two"):
            command = script(RANK, job, program="torchrun")
            manifest = manifest_of(command, "cluster.deadline_s=100")
            (tmp_path / f"{job}.json").write_text(json.dumps(manifest))
            jobs.append(subprocess.Popen([*step, str(tmp_path / f"{job}.json"), str(tmp_path / job)]))
        assert [job.wait() for job in jobs] == [0, 0]
    ports = []
    for job in ("one", "two"):
        logs = [(tmp_path / job / f"{replica}.log").read_text() for replica in ("master-0", "worker-0")]
        # Beside them torch may speak of a name that isn't resolved, or of an agent that left first.
        ranks_lines = [[line for line in log.splitlines() if line.startswith(f"{job} rank")] for log in logs]
        ports.append(ranks_lines[0][0].split()[-1])
        assert ranks_lines == [[f"{job} rank {rank} of 2 at {ports[-1]}"] for rank in range(2)]
    assert len({*ports, "29500", "29400"}) == 4
