"""The Master's log, streamed through lost connections."""

from typing import Any

import pytest
from scripted_api import Fault, ScriptedApi

from thaw.components.launcher.kubernetes import logs
from thaw.components.launcher.kubernetes.client import Api

LINES = [f"step {step}" for step in range(7)]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_FIRST_PAUSE_S", 0.01)


def streamed(api: ScriptedApi) -> list[str]:
    lines: list[str] = []
    seen = api.until

    def on_line(line: str) -> None:
        lines.append(line)
        if len(lines) == len(LINES):
            with api._changed:
                api._changed.notify_all()

    log = logs.StreamedLog(Api("default"), "job-master-0", on_line)
    seen(lambda: len(lines) == len(LINES))
    log.end()
    assert log.last_lines(timeout_s=60) == lines
    return lines


def test_each_line_comes_once_though_every_connection_is_cut(api: ScriptedApi) -> None:
    api.logs = {"job-master-0": LINES}
    api.lines_at_once = 2
    assert streamed(api) == LINES
    assert len(api.made("GET", "/log")) > 3


@pytest.mark.parametrize("kind", ["reset", "cut", "answer"])
def test_a_connection_that_fails_is_made_again(api: ScriptedApi, kind: Any) -> None:
    api.logs = {"job-master-0": LINES}
    api.faults = [Fault("GET", "/log$", kind, status=500, times=2)]
    assert streamed(api) == LINES


def test_a_container_that_is_not_there_yet_is_waited_for(api: ScriptedApi) -> None:
    lines: list[str] = []
    log = logs.StreamedLog(Api("default"), "job-master-0", lines.append)
    api.until(lambda: len(api.made("GET", "/log")) == 2)
    api.logs = {"job-master-0": LINES}
    log.end()
    assert log.last_lines(timeout_s=60) == LINES
    assert lines == LINES
