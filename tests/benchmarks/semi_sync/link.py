"""Two network namespaces joined by a link of a given delay and rate, which is checked before it is used.

The link is a program in C (relay.c). The namespaces have no names and no processes of their own: they are gone with
the relay and whoever entered them, however these end.
"""

import ctypes
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ADDRESSES = ("10.77.0.1", "10.77.0.2")
DEVICE = "tun0"
MTU = 32_000
"""Bytes. Large, so that the relay costs little CPU: one packet in about 0.25 ms at 1 Gbit/s."""

TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 4194304 33554432",
}
"""Of both namespaces, whatever this machine has. Reno, as nothing is lost here, has a window that only grows; a receive
buffer holds many of the large packets from the first one on."""

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Rate:
    """What a link is like, in each direction."""

    rate_mbit: float
    delay_ms: float
    queue: Literal["fair", "fifo"] = "fair"
    """Whether connections take the wire in turns, or first come, first served."""

    def __str__(self) -> str:
        return f"{self.rate_mbit:g} Mbit/s, {self.delay_ms:g} ms one way, {self.queue} queue"


@dataclass
class Link:
    """A link that is up."""

    namespaces: tuple[str, str]
    """Paths to enter them by."""
    relay: int
    """Process id of the relay."""
    round_trip_ms: float
    rate_mbit: float
    """Of one TCP stream."""


def missing() -> str | None:
    """What this machine lacks to have links, if anything."""
    if os.geteuid() != 0:
        return "root: network namespaces can only be made by root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun: the kernel has no TUN devices"
    if shutil.which("cc") is None:
        return "cc: the link is a C program that is compiled first"
    return None


def build_relay(folder: Path) -> Path:
    """Compile the relay."""
    relay = folder / "relay"
    subprocess.run(["cc", "-O2", "-Wall", "-o", relay, Path(__file__).with_name("relay.c")], check=True)
    return relay


@contextmanager
def link(relay: Path, rate: Rate) -> Iterator[Link]:
    """Bring a link up, and check it."""
    command = [relay, str(rate.delay_ms * 1e3), str(rate.rate_mbit), str(MTU), rate.queue, *ADDRESSES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            if len(line) != 2:
                raise SystemExit(f"the link of {rate} did not come up; see the error above")
            namespaces = (line[0], line[1])
            for namespace in namespaces:
                _in_thread(namespace, _set_tcp).join()
            yield Link(namespaces, process.pid, *_measure(namespaces))
        finally:
            process.kill()


def enter(namespace: str) -> None:
    """Let this thread, and those that it starts, be in a network namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path(namespace).open() as file:
        if library.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"can't enter the network namespace {namespace}")


def die_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def sent_bytes(device: str) -> int:
    """What a network device of this thread's namespace has sent since it is up."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == device:
            return int(counts.split()[8])
    raise LookupError(f"no network device {device}")


def _set_tcp() -> None:
    for name, value in TCP.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def _in_thread(namespace: str, run: Callable[[], None]) -> threading.Thread:
    """Begin a thread inside a network namespace."""

    def go() -> None:
        enter(namespace)
        run()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


def _measure(namespaces: tuple[str, str], num_pings: int = 20, num_bytes: int = 24 << 20) -> tuple[float, float]:
    """Round trip in ms and rate in Mbit/s, by a TCP stream from the first namespace to the second."""
    address = (ADDRESSES[1], 9)
    found: list[tuple[float, float]] = []
    is_listening = threading.Event()

    def serve() -> None:
        with socket.create_server(address) as server:
            server.settimeout(20)
            is_listening.set()
            stream, _ = server.accept()
            with stream:
                stream.settimeout(20)
                for _ in range(num_pings):
                    stream.sendall(stream.recv(1))
                buffer, left = bytearray(1 << 20), num_bytes
                while left:
                    left -= stream.recv_into(buffer, min(left, len(buffer)))
                stream.sendall(b".")

    def ask() -> None:
        is_listening.wait(20)
        with socket.create_connection(address, timeout=20) as stream:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            round_trips = []
            for _ in range(num_pings):
                begun = time.perf_counter()
                stream.sendall(b".")
                stream.recv(1)
                round_trips.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            stream.sendall(bytes(num_bytes))
            stream.recv(1)
            seconds = time.perf_counter() - begun
            found.append((statistics.median(round_trips) * 1e3, num_bytes * 8 / seconds / 1e6))

    for thread in (_in_thread(namespaces[1], serve), _in_thread(namespaces[0], ask)):
        thread.join(60)
    if not found:
        raise SystemExit("the link is up, and carries nothing")
    return found[0]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the compiled relay and for what ranks say."""
    with tempfile.TemporaryDirectory(prefix="semi-sync-") as name:
        yield Path(name)
