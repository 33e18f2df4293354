import os
import signal
import subprocess
import sys
import threading

from thaw.components.lifeline import when_gone

QUIET = [sys.executable, "-c", "import signal; signal.pause()"]
PARENT = """
import os, subprocess, sys
from thaw.components.lifeline import die_with_parent
parent = os.getpid()
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.pause()"], preexec_fn=lambda: die_with_parent(parent)
)
print(child.pid, flush=True)
child.wait()
"""


def test_the_end_of_a_process_is_noticed_and_nothing_before_it() -> None:
    process = subprocess.Popen(QUIET)
    gone = threading.Event()
    when_gone(process.pid, gone.set)
    assert not gone.wait(0.1)
    process.kill()
    assert gone.wait(10)
    process.wait()


def test_a_process_that_is_gone_already_is_noticed_at_once() -> None:
    process = subprocess.Popen(QUIET)
    process.kill()
    process.wait()
    gone = threading.Event()
    when_gone(process.pid, gone.set)
    assert gone.wait(10)


def test_a_process_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    gone = threading.Event()
    when_gone(pid, gone.set)
    assert not gone.is_set()
    parent.send_signal(signal.SIGKILL)
    assert gone.wait(10)
    parent.communicate()


def test_a_process_whose_parent_is_another_by_now_ends() -> None:
    not_the_parent = os.getpid() + 1
    source = f"from thaw.components.lifeline import die_with_parent; die_with_parent({not_the_parent})"
    assert subprocess.run([sys.executable, "-c", source]).returncode == 1
