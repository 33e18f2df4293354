"""Where the chain runs: on one thread beside the main one (CPU), or on streams of the device (CUDA).

The schedule is written once, in schedule.py, as links that follow one another. A place takes the links in that order,
says when they are done, and knows what has to be known of streams: which link waits for which, and whose memory is used
where. On CPU nothing of that is needed, as the thread runs a link to its end before it begins the next.
"""

import atexit
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

import torch

# The rows of the timeline in schedule.py. Trace events and profiler ranges bear the same words.
COPY = "copy"
INPUT_DIST = "input dist"
LOOKUP = "lookup and output dist"
DENSE = "dense forward and backward"
SPARSE_BACKWARD = "sparse backward and update"
WAIT = "wait"
"""Not a row of its own: the part of the dense row in which it has nothing to do but wait for a lookup."""

_LAST_LINKS_S = 2
"""How long an interpreter that ends waits for links of a pipeline that was not closed."""

T = TypeVar("T")
Mark = float | torch.cuda.Event
"""A moment: seconds of the host's clock, or an event on a stream."""


class Outcome(Protocol, Generic[T]):  # type: ignore[misc]
    """What a link will have given."""

    def result(self) -> T:
        """What it gave, fit for use on the dense row from here on. Raises what the link raised."""


class Place(Protocol):
    """One queue of links. The order in which they are submitted is the order in which they run, on every rank."""

    host_reads_wait: bool
    """Whether reading a device's value stops the host, which then can't go on issuing work."""

    def submit(self, link: Callable[[], T]) -> Outcome[T]:
        """Let the link run behind those before it. An error of its own or of an earlier one is in its outcome."""

    def settle(self) -> None:
        """Wait on the host until every submitted link has run to its end; raise the first error."""

    def on(self, row: str) -> AbstractContextManager[object]:
        """Run what follows on this row."""

    def after(self, mark: Mark) -> None:
        """Let the present row go on only when all that stands before the mark, on its row, is done."""

    def lend(self, things: Iterable[Any], row: str) -> None:
        """Keep the memory of tensors (or of what holds some) made on another row until this row is done with them."""

    def mark(self) -> Mark:
        """Now, on the present row."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Between two marks; waits until both have been reached."""

    def reach(self, mark: Mark) -> None:
        """Wait on the host until the mark has been reached."""

    def where(self, row: str) -> str:
        """Name of the thread or stream that runs the row."""

    def stop(self) -> None:
        """Take no more links."""


class ChainThread:
    """The CPU's place: a thread that runs the links one by one and alone issues the sparse collectives.

    After a link has failed no later one is run: each gives the first one's error, so that it comes up wherever the main
    thread looks next.
    """

    host_reads_wait = False

    def __init__(self) -> None:
        self._links: queue.SimpleQueue[tuple[Callable[[], object], Future] | None] = queue.SimpleQueue()
        self._last: Future | None = None
        self._error: BaseException | None = None
        # OpenMP counts threads for each thread of Python anew.
        num_threads = torch.get_num_threads()
        # A daemon: stuck in a collective whose other ranks have died, it must not keep the process.
        self._thread = threading.Thread(target=self._run, args=(num_threads,), name="sparse chain", daemon=True)
        self._thread.start()
        # gloo ends the process by force if the interpreter is gone in the midst of a link.
        atexit.register(self._end)

    def submit(self, link: Callable[[], T]) -> Outcome[T]:
        """See `Place`."""
        future: Future[T] = Future()
        self._last = future
        self._links.put((link, future))
        return future

    def settle(self) -> None:
        """See `Place`."""
        if self._last is not None:
            self._last.result()

    def on(self, row: str) -> AbstractContextManager[object]:
        """See `Place`."""
        return nullcontext()

    def after(self, mark: Mark) -> None:
        """See `Place`."""

    def lend(self, things: Iterable[Any], row: str) -> None:
        """See `Place`."""

    def mark(self) -> Mark:
        """See `Place`."""
        return time.perf_counter()

    def seconds(self, begin: Mark, end: Mark) -> float:
        """See `Place`."""
        assert isinstance(begin, float) and isinstance(end, float)
        return end - begin

    def reach(self, mark: Mark) -> None:
        """See `Place`."""

    def where(self, row: str) -> str:
        """See `Place`."""
        return "main thread" if row in (COPY, DENSE, WAIT) else "chain thread"

    def stop(self) -> None:
        """See `Place`."""
        self._links.put(None)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """Let the links end that were submitted, as long as the other ranks take part."""
        self._links.put(None)
        self._thread.join(_LAST_LINKS_S)

    def _run(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        while (item := self._links.get()) is not None:
            link, future = item
            if self._error is None:
                try:
                    future.set_result(link())
                    del item, link, future  # an idle chain holds no batch
                    continue
                except BaseException as error:
                    self._error = error
            future.set_exception(self._error)


class ChainStreams:
    """CUDA's place: the main thread issues the links at once, on streams of their own.

    No second thread: NCCL wants the same order of launches on every rank, and only the main thread's order is one.
    Three streams beside the main one. Ids have theirs: the host waits for it, to learn sizes, and nothing on it may
    stand behind a dense backward pass, or the next step would be issued only after that. The tables' stream does stand
    there, and the host never waits for it, but for a loss scaler's sake.
    """

    host_reads_wait = True

    def __init__(self, device: torch.device) -> None:
        tables = torch.cuda.Stream(device, priority=-1)
        self._streams = {
            COPY: torch.cuda.Stream(device),
            INPUT_DIST: torch.cuda.Stream(device, priority=-1),
            LOOKUP: tables,
            SPARSE_BACKWARD: tables,
        }
        self._device = device

    def submit(self, link: Callable[[], T]) -> Outcome[T]:
        """See `Place`. An error comes up here: the main thread is the one that runs the link."""
        value = link()
        # The tables' stream is the one that links end on; the last of its work is the link's.
        return _Issued(value, self._streams[LOOKUP].record_event(), self._device)

    def settle(self) -> None:
        """See `Place`."""
        for stream in self._streams.values():
            stream.synchronize()

    def on(self, row: str) -> AbstractContextManager[object]:
        """See `Place`."""
        return torch.cuda.stream(self._streams[row]) if row in self._streams else nullcontext()

    def after(self, mark: Mark) -> None:
        """See `Place`."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def lend(self, things: Iterable[Any], row: str) -> None:
        """See `Place`."""
        stream = self._streams.get(row) or torch.cuda.current_stream(self._device)
        for thing in things:
            if not isinstance(thing, torch.Tensor) or thing.is_cuda:
                thing.record_stream(stream)

    def mark(self) -> Mark:
        """See `Place`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: Mark, end: Mark) -> float:
        """See `Place`."""
        assert isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def reach(self, mark: Mark) -> None:
        """See `Place`."""
        assert isinstance(mark, torch.cuda.Event)
        mark.synchronize()

    def where(self, row: str) -> str:
        """See `Place`."""
        return {COPY: "copy stream", INPUT_DIST: "ids stream"}.get(
            row, "tables stream" if row in self._streams else "main stream"
        )

    def stop(self) -> None:
        """See `Place`."""


class _Issued(Generic[T]):
    """A link whose work has been issued, and the event behind it."""

    def __init__(self, value: T, done: torch.cuda.Event, device: torch.device) -> None:
        self._value, self._done, self._device = value, done, device

    def result(self) -> T:
        torch.cuda.current_stream(self._device).wait_event(self._done)
        return self._value
