"""The Master's log, streamed through lost connections."""

from typing import Any

import pytest
from scripted_api import Fault, ScriptedApi

from thaw.components.launcher.kubernetes import logs
from thaw.components.launcher.kubernetes.client import Api

LINES = [f"step {step}" for step in range(7)]
TIME = "2026-03-02T06:00:00.1Z"


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


def test_words_of_the_kubelet_between_the_lines_have_no_time(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    data = f"{TIME} one\nfailed to create fsnotify watcher: too many open files\n{TIME} two\n".encode()
    monkeypatch.setattr(Api, "_stream", lambda *arguments: iter([data]))
    lines = list(Api("default").log_lines("pod", "pytorch", None, follow=True))
    assert lines == [(TIME, "one"), ("", "failed to create fsnotify watcher: too many open files"), (TIME, "two")]


def test_a_clock_that_is_set_back_hides_no_line(api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [("2026-03-02T06:00:09Z", "before"), ("2026-03-02T06:00:01Z", "after"), ("2026-03-02T06:00:02Z", "later")]
    monkeypatch.setattr(Api, "log_lines", lambda self, pod, container, since, follow: iter(written))
    log = logs.StreamedLog(Api("default"), "job-master-0")
    log.end()
    assert log.last_lines(timeout_s=60)[:3] == ["before", "after", "later"]


def test_a_container_that_is_not_there_yet_is_waited_for(api: ScriptedApi) -> None:
    lines: list[str] = []
    log = logs.StreamedLog(Api("default"), "job-master-0", lines.append)
    api.until(lambda: len(api.made("GET", "/log")) == 2)
    api.logs = {"job-master-0": LINES}
    log.end()
    assert log.last_lines(timeout_s=60) == LINES
    assert lines == LINES


@pytest.mark.parametrize(
    ("written", "pieces"),
    [
        (f"{TIME} 1%\r 2%\r 3%\n{TIME} done\r\n", [(TIME, "1%"), ("", " 2%"), ("", " 3%"), (TIME, "done")]),
        (f"{TIME} " + "x" * 100_000, [(TIME, "x" * 65536)]),
        (f"{TIME} \n", [(TIME, "")]),
    ],
    ids=["progress", "long", "blank"],
)
def test_a_line_that_does_not_end_is_given_out_all_the_same(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch, written: str, pieces: list[tuple[str, str]]
) -> None:
    """However the bytes come; of a long line the rest may still be under way."""
    data = written.encode()
    step = 7 if len(data) < 1000 else len(TIME) + 1 + 65536
    chunks = [data[begin : begin + step] for begin in range(0, len(data), step)]
    server = Api("default")
    monkeypatch.setattr(server, "_stream", lambda *_: iter(chunks))
    assert list(server.log_lines("job-master-0", "pytorch", None, follow=True)) == pieces


def test_each_piece_of_a_line_is_kept_once(api: ScriptedApi) -> None:
    api.logs = {"job-master-0": ["1%\r2%\r3%", "end"]}
    lines: list[str] = []
    log = logs.StreamedLog(Api("default"), "job-master-0", lines.append)
    api.until(lambda: len(api.made("GET", "/log")) == 2)
    log.end()
    assert log.last_lines(timeout_s=60) == lines == ["1%", "2%", "3%", "end"]


def test_the_end_of_a_log_is_bounded_in_bytes(api: ScriptedApi) -> None:
    api.logs = {"job-master-0": LINES}
    assert Api("default").log_tail("job-master-0", "pytorch", 2) == LINES[-2:]
    assert api.made("GET", "/log")[0].query["limitBytes"] == str(8 << 20)
