"""Why a job died: the replica that failed first, not those that only noticed, and what it said."""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thaw.components import events

NUM_LAST_LINES = 6
_MAX_LINE_LENGTH = 300
_BY_SIGNAL = 128
"""A container that signal N ended has exit code 128 + N."""
_KILLED = (-signal.SIGKILL, _BY_SIGNAL + signal.SIGKILL)
_MEMORY_HINT = (
    "if the memory ran out, lower training.shuffle_rows or training.global_batch_size, or give the replicas more"
)
_APART = re.compile(r"Timed out after \d+ seconds waiting for clients|client socket has (failed to connect|timed out)")
"""What torchrun's agents say that did not find each other."""
_APART_HINT = (
    "see in the replicas' logs which of them did not find master-0: pods must resolve each other's names and reach the "
    "rendezvous' port, which the cluster's DNS or a network policy may keep from them"
)

# What a rank says that lost its partner in a collective. NCCL's watchdog ends such a rank by SIGABRT.
_NOTICED = re.compile(
    r"Connection (closed by peer|reset by peer|refused|was likely closed)|Broken pipe|Socket ?Timeout|"
    r"Dist(Network|Store)Error|RendezvousConnectionError|ncclRemoteError|remote process exited|"
    r"Timed out waiting|Watchdog caught collective operation timeout|Application timeout caused pair closure",
    re.IGNORECASE,
)
# What torchrun's agent says in its own name: lines of its loggers, and the report that it ends with, after a traceback.
_AGENT_LINE = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ \d+ torch/distributed/")
_REPORT = re.compile(r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError")
_REPORTED_RANK = re.compile(r"\s*rank +: (\d+) \(local_rank: \d+\)")
_REPORTED_EXIT = re.compile(r"\s*exitcode +: (-?\d+) \(pid: \d+\)")
_RANK_PREFIX = re.compile(r"^\[rank(\d+)\]: ?")
_ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Failed|Failure)\b|\s+what\(\):")


class JobFailed(RuntimeError):  # noqa: N818 - says what happened, as its message does
    """A training job died. The message is a few lines, the cause on the last one.

    Attributes:
        job: Name of the PyTorchJob.
        replica: The one at fault, as `worker-0`; None where none was (a deadline, a signal to the launcher).
        rank: The one at fault, where it is known.
        exit_code: Its exit status, unless a signal killed it.
        signal: Number of the signal that killed it.
        last_lines: Of the replica's log, the agent's own report left out.
        hint: What to do next, where that is known.
        had_ended: Whether it was over before this launcher first looked.
        leaves_open: Whether it may live on, so that the attempt is not over.
    """

    def __init__(
        self,
        job: str,
        cause: str,
        *,
        replica: str | None = None,
        rank: int | None = None,
        exit_code: int | None = None,
        signal: int | None = None,
        last_lines: Sequence[str] = (),
        log_uri: str | None = None,
        hint: str | None = None,
        fate: str = "",
        had_ended: bool = False,
        leaves_open: bool = False,
    ):
        where = f" in {replica}" if replica else ""
        log = f"; {log_uri} ends:" if log_uri and last_lines else f"; its log is {log_uri}" if log_uri else ""
        shown = [line[:_MAX_LINE_LENGTH] for line in last_lines[-NUM_LAST_LINES:]]
        first = f"PyTorchJob {job} failed{where}{fate and ' and '}{fate}{log}"
        super().__init__("\n".join([first, *(f"    {line}" for line in shown), cause]))
        self.job = job
        self.replica = replica
        self.rank = rank
        self.exit_code = exit_code
        self.signal = signal
        self.last_lines = tuple(last_lines)
        self.hint = hint
        self.had_ended = had_ended
        self.leaves_open = leaves_open


@dataclass(frozen=True)
class ReplicaEnd:
    """How a replica of a job ended."""

    replica: str
    exit_code: int | None
    """Of its container's command; -N where signal N ended it and its parent was told so; None where nobody saw it."""
    lines: Sequence[str]
    """The end of its log: some hundred lines, as torchrun's report has forty."""
    reason: str | None = None
    """Why it ended, in the words of what ended it from outside."""


@dataclass(frozen=True)
class Cause:
    """One process's death, as its replica's log tells it."""

    replica: str
    rank: int | None
    exit_code: int | None
    """-N where signal N ended it."""
    said: str | None
    """The error, in one line."""
    reason: str | None = None
    """As of its replica."""

    @property
    def by_signal(self) -> bool:
        """Whether a signal ended it, as its parent saw it, or a shell or container runtime passed it on."""
        return self.exit_code is not None and (self.exit_code < 0 or self.exit_code > _BY_SIGNAL)

    @property
    def only_noticed(self) -> bool:
        """Whether it died because another did: of a lost connection, or ended by its agent."""
        told_to_end = self.exit_code in (-signal.SIGTERM, _BY_SIGNAL + signal.SIGTERM)
        if told_to_end and (self.rank is not None or self.reason is None):
            return True
        if self.reason is not None:
            return False
        by_itself = self.exit_code is None or self.exit_code >= 0 or self.exit_code == -signal.SIGABRT
        return by_itself and self.said is not None and _NOTICED.search(self.said) is not None

    def __str__(self) -> str:
        who = self.replica if self.rank is None else f"rank {self.rank} ({self.replica})"
        why = f" ({self.reason})" if self.reason else ""
        if self.exit_code is None:
            return f"{who} failed{why}" + (f": {self.said}" if self.said else "")
        if self.exit_code < 0:
            name = _signal_name(-self.exit_code)
            if self.exit_code == -signal.SIGKILL and not why:
                why = " (the kernel does that where memory runs out)"
            return f"{who} was killed by signal {-self.exit_code}, {name}{why}"
        if self.exit_code > _BY_SIGNAL and not why:
            why = f" ({_signal_name(self.exit_code - _BY_SIGNAL)})"
        return f"{who} ended with exit code {self.exit_code}{why}" + (f": {self.said}" if self.said else "")


def root_cause(ends: Sequence[ReplicaEnd]) -> Cause:
    """Of the replicas that failed, in the order in which they ended, the death that the others followed.

    What was ended from outside for a known reason comes first, then a signal, as it leaves no partner the time to die
    of anything but the lost connection, then an exception; all come before a death that only noticed another.
    """
    causes = [cause for end in ends for cause in _causes(end)]
    return min(causes, key=lambda cause: (cause.only_noticed, cause.reason is None, not cause.by_signal))


def job_failed(
    job: str, ends: Sequence[ReplicaEnd], log_uris: Mapping[str, str], *, fate: str = "", had_ended: bool = False
) -> JobFailed:
    """The error of a job of which at least one replica failed.

    Args:
        job: Its name.
        ends: The replicas that failed, in the order in which they ended.
        log_uris: Where their logs are, by replica; not all of them need have one.
        fate: What became of the job's remains, as "was deleted".
        had_ended: As of JobFailed.
    """
    cause = root_cause(ends)
    end = next(end for end in ends if end.replica == cause.replica)
    return JobFailed(
        job,
        str(cause),
        replica=cause.replica,
        rank=cause.rank,
        exit_code=cause.exit_code if cause.exit_code is not None and cause.exit_code >= 0 else None,
        signal=-cause.exit_code if cause.exit_code is not None and cause.exit_code < 0 else None,
        last_lines=last_lines(end.lines),
        log_uri=log_uris.get(cause.replica),
        hint=_hint(cause),
        fate=fate,
        had_ended=had_ended,
    )


def _hint(cause: Cause) -> str | None:
    if cause.exit_code in _KILLED or (cause.reason or "").startswith("OOMKilled"):
        return _MEMORY_HINT
    return _APART_HINT if cause.rank is None and _APART.search(cause.said or "") else None


def tells_failure(lines: Sequence[str]) -> bool:
    """Whether the end of a replica's log says itself that a rank failed."""
    return bool(_reported(lines)) or any((event := events.parse(line)) and event["event"] == "error" for line in lines)


def last_lines(lines: Sequence[str]) -> list[str]:
    """The last lines that ranks wrote: neither the agent's, nor events, nor blank ones."""
    own = [line for line in _without_report(lines) if line.strip() and events.parse(line) is None]
    return own[-20:]


def _causes(end: ReplicaEnd) -> list[Cause]:
    """One for each rank that the agent reports as failed; where it reports none, one for the agent."""
    own = _without_report(end.lines)
    errors = {event.get("rank"): event for line in own if (event := events.parse(line)) and event["event"] == "error"}
    reported = _reported(end.lines)
    if not reported:
        return [Cause(end.replica, None, end.exit_code, _said(own, None, errors), end.reason)]
    return [
        Cause(end.replica, rank, exit_code, _said(own, rank, errors), end.reason)
        for rank, exit_code in reported.items()
    ]


def _said(own: Sequence[str], rank: int | None, errors: dict[Any, dict[str, Any]]) -> str | None:
    """The error in a rank's words: of its error event, else of the traceback's last line."""
    event = errors.get(rank) if rank is not None else next(iter(errors.values()), None)
    if event is not None:
        where = f" ({event['where']})" if event.get("where") else ""
        return f"{event.get('type')}: {event.get('message')}{where}"
    for line in reversed(own):
        prefix = _RANK_PREFIX.match(line)
        if prefix and rank is not None and int(prefix[1]) != rank:
            continue
        text = _RANK_PREFIX.sub("", line)
        if _ERROR_LINE.match(text):
            return text
    return None


def _reported(lines: Sequence[str]) -> dict[int, int]:
    """Exit codes by rank, of torchrun's report (torch 2.13, elastic/multiprocessing/errors)."""
    exit_codes = {}
    rank = None
    for line in lines:
        if match := _REPORTED_RANK.fullmatch(line):
            rank = int(match[1])
        elif rank is not None and (match := _REPORTED_EXIT.match(line)):
            exit_codes[rank] = int(match[1])
            rank = None
    return exit_codes


def _without_report(lines: Sequence[str]) -> list[str]:
    """What came before the agent's own last words."""
    end = next((index for index, line in enumerate(lines) if _REPORT.match(line)), None)
    if end is not None:
        start = max((index for index, line in enumerate(lines[:end]) if line.startswith("Traceback")), default=end)
        lines = lines[:start]
    return [line for line in lines if not _AGENT_LINE.match(line)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
