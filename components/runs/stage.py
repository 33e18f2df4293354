"""The frame in which every step runs: the attempt claimed, its inputs checked, its end recorded."""

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from thaw.components import storage
from thaw.components.config import RunConfig
from thaw.components.events import emit
from thaw.components.runs.attempt import (
    MANIFEST,
    Attempt,
    attempt_numbers,
    attempt_uri,
    begin_attempt,
    committed_attempt,
    now,
    take_attempt,
)
from thaw.components.runs.content import content_digest
from thaw.components.runs.lineage import check_inherited
from thaw.components.runs.manifest import (
    Failure,
    NotCommittedError,
    Reference,
    StageManifest,
    commit,
    fail,
    output_uri,
    read_manifest,
)
from thaw.components.runs.refused import refusing
from thaw.components.runs.run import read_run
from thaw.components.runs.versions import versions

NUM_LAST_LINES = 20


class CommittedMeanwhileError(RuntimeError):
    """Somebody else has done the stage, so that there is nothing left to do but to start it again and see that."""

    leaves_open = True


class Stage:
    """A stage at work: write its outputs below `uri`, then `commit`.

    Attributes:
        uri: Folder of the attempt.
        attempt: The attempt.
        inputs: The committed attempts that it builds on, by name.
        manifests: Their manifests, by the same names.
        committed: Set by `commit`; of a stage that was done before, set from the start.
        figures: What was committed.
        job_may_live: Whether the attempt's job may live, or has done its work, so that another start of the stage can
            take it up. Such an attempt is not over, whatever goes wrong here: a new one would do the work once more.
    """

    def __init__(self, config: RunConfig, attempt: Attempt, job_may_live: bool = False):
        self.uri = attempt.uri
        self.attempt = attempt
        self.inputs: dict[str, Reference] = {}
        self.manifests: dict[str, StageManifest] = {}
        self.committed: Reference | None = None
        self.figures: dict[str, Any] = {}
        self.job_may_live = job_may_live
        self._config = config

    def input_uri(self, name: str, output: str) -> str:
        """Where an output of an input lies."""
        return output_uri(self.inputs[name].uri, self.manifests[name], output)

    def begin_anew(self, error: BaseException) -> None:
        """Go on in the stage's next attempt; `error` says why this one, which was taken up, is over.

        Raises:
            CommittedMeanwhileError: somebody else took it up too, and saw it through.
        """
        run_uri, name, ended = self.attempt.run_uri, self.attempt.stage, self.attempt.number
        _record(self.attempt, error)
        if committed_attempt(run_uri, name) is not None:
            raise CommittedMeanwhileError(
                f"stage {name} was committed meanwhile by another start of it; start it again"
            )
        self.attempt, self.job_may_live = take_attempt(run_uri, name)
        if self.attempt.number == ended:  # its end could not be recorded
            raise error
        self.uri = self.attempt.uri

    def commit(
        self,
        *,
        figures: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str] | None = None,
        window: Mapping[str, Any] | None = None,
    ) -> Reference:
        """Publish the attempt. Nothing is written after it.

        Args:
            figures: What was measured; numbers are finite.
            outputs: Paths below `uri`, by name; or whole URIs of what lies elsewhere.
            window: The window's days and fingerprint (`Window.summary`).
        """
        manifest = StageManifest(
            stage=self.attempt.stage,
            run_id=self.attempt.run_id,
            attempt=self.attempt.number,
            config=self._config.model_dump(mode="json"),
            inputs=self.inputs,
            window=dict(window) if window is not None else None,
            versions=versions(),
            started_at=self.attempt.started_at,
            finished_at=now(),
            figures=dict(figures or {}),
            outputs=dict(outputs or {}),
        )
        places = {name: output_uri(self.uri, manifest, name) for name in manifest.outputs}
        digests = {name: digest for name, uri in places.items() if (digest := content_digest(uri))}
        manifest = manifest.model_copy(update={"digests": digests})
        try:
            self.committed = commit(self.attempt, manifest)
        except FileExistsError:
            # Two starts of the stage that followed one job: the other one was first.
            manifest, digest = read_manifest(self.uri)
            self.committed = Reference(uri=self.uri, digest=digest)
        self.figures = manifest.figures
        return self.committed


@contextmanager
def stage(
    config: RunConfig, run_uri: str, name: str, inputs: Mapping[str, str] | None = None, *, takes_up: bool = False
) -> Iterator[Stage]:
    """Runs a stage as a new attempt: `with stage(...) as s: if not s.committed: ...; s.commit(...)`.

    Where the stage has inputs, and its newest attempt is committed with this configuration and these, there is nothing
    left to do, and the block gets that attempt.

    What the block raises is recorded as the attempt's failure and raised on. An exception can bring what it knows as
    attributes named like the fields of `Failure`: replica, exit_code, signal, last_lines, hint; and `leaves_open`,
    where what the attempt began may still go on, so that it is not over. A stage that was refused (`RefusedError`)
    isn't tried again with the same configuration and inputs.

    Args:
        config: The run's document.
        run_uri: Folder of the run.
        name: The stage.
        inputs: Folders of the attempts that it builds on, by name.
        takes_up: Go on in the newest attempt, if that is open: whoever began it is gone, and what it began may live.

    Raises:
        NotCommittedError: an input is not committed.
        ChangedOutputError, CheckpointError: an input from the parent of a rerun is not what it was.
        RefusedError: it was refused before.
    """
    asked = (config.model_dump_json(), *(f"{key}={uri}" for key, uri in sorted((inputs or {}).items())))
    with refusing(run_uri, name, *asked), _attempt(config, run_uri, name, inputs or {}, takes_up) as current:
        yield current


@contextmanager
def _attempt(config: RunConfig, run_uri: str, name: str, inputs: Mapping[str, str], takes_up: bool) -> Iterator[Stage]:
    start_s = time.monotonic()
    emit("stage", stage=name, status="started")
    try:
        current = _done(config, run_uri, name, inputs)
        if current is None:
            current = Stage(config, *(take_attempt(run_uri, name) if takes_up else (begin_attempt(run_uri, name),)))
        try:
            if current.committed is None:
                _read_inputs(current, inputs)
            yield current
            assert current.committed, f"stage {name} ended without a commit"
        except BaseException as error:
            is_over = not current.job_may_live and not getattr(error, "leaves_open", False)
            if current.committed is None and is_over:
                _record(current.attempt, error)
            raise
    except BaseException:
        emit("stage", stage=name, status="failed", seconds=round(time.monotonic() - start_s, 1))
        raise
    emit("stage", stage=name, status="committed", seconds=round(time.monotonic() - start_s, 1))


def _read_inputs(current: Stage, inputs: Mapping[str, str]) -> None:
    run_uri = current.attempt.run_uri
    for name, uri in inputs.items():
        manifest, digest = read_manifest(uri)
        current.inputs[name] = Reference(uri=uri, digest=digest)
        current.manifests[name] = manifest
        if not uri.startswith(storage.join(run_uri, "")):
            check_inherited(read_run(run_uri), current.inputs[name], manifest)


def _done(config: RunConfig, run_uri: str, name: str, inputs: Mapping[str, str]) -> Stage | None:
    """The stage, if its newest attempt is committed, with this configuration and these inputs.

    A stage without inputs is never done: it reads the store, which can hold something else by now.
    """
    if not inputs:
        return None
    for number in attempt_numbers(run_uri, name)[-1:]:
        try:
            manifest, digest = read_manifest(attempt_uri(run_uri, name, number))
            current = Stage(config, Attempt(run_uri, name, number, manifest.started_at))
            _read_inputs(current, inputs)
        except NotCommittedError:
            return None
        if (manifest.config, manifest.inputs) == (config.model_dump(mode="json"), current.inputs):
            current.committed = Reference(uri=current.uri, digest=digest)
            current.figures = manifest.figures
            return current
    return None


def _record(attempt: Attempt, error: BaseException) -> None:
    """Writes failure.json; the store that caused the failure may refuse it, and the failure is then still the news."""
    # What the input or the store is at fault for needs no stack; anything else does.
    stack = "" if isinstance(error, (ValueError, OSError)) else "".join(traceback.format_exception(error))
    failure = Failure(
        message=str(error) or type(error).__name__,
        stage=attempt.stage,
        replica=getattr(error, "replica", None),
        exit_code=getattr(error, "exit_code", None),
        signal=getattr(error, "signal", None),
        last_lines=tuple(getattr(error, "last_lines", stack.splitlines()[-NUM_LAST_LINES:])),
        hint=getattr(error, "hint", None) or _hint(error),
        failed_at=now(),
    )
    try:
        if not storage.exists(storage.join(attempt.uri, MANIFEST)):
            fail(attempt, failure)
    except OSError as refusal:
        error.add_note(f"The failure could not be recorded: {refusal}")


def _hint(error: BaseException) -> str:
    if isinstance(error, storage.StorageError):
        return f"see that {error.uri} can be reached, may be written and has room, then start a new run"
    if isinstance(error, (ValueError, OSError)):
        return "set right what the message names, then start a new run"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return "it was ended from outside; start a new run"
    return "the last lines say where it happened"
