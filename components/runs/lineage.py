"""What a rerun takes from its parent: the run that it repeats from some stage on."""

import os

from thaw.components import storage
from thaw.components.refused import RefusedError
from thaw.components.runs.attempt import MANIFEST, committed_attempt
from thaw.components.runs.content import ChangedOutputError, check_attempt
from thaw.components.runs.manifest import NotCommittedError, Reference, StageManifest, read_manifest
from thaw.components.runs.run import RunRecord, parent_of, read_run
from thaw.components.runs.stages import recorded_stages
from thaw.components.storage.filesystem import is_local


def check_inherited(record: RunRecord, reference: Reference, manifest: StageManifest) -> None:
    """Pass an input of another run that is exactly what this run's record says that it builds on.

    Raises:
        ChangedOutputError, CheckpointError: it isn't, or its outputs have changed; with both digests.
    """
    parent = parent_of(record)
    expected = parent.inputs.get(manifest.stage) if parent else None
    if expected is None:
        return
    if reference != expected:
        raise ChangedOutputError(
            f"{manifest.stage} of run {manifest.run_id}: {reference.uri}/{MANIFEST} is {reference.digest}, and "
            f"{expected.uri}/{MANIFEST} was {expected.digest} when the rerun was asked for"
        )
    check_attempt(reference, manifest)


class Lineage:
    """The committed attempts that led to a run's results, each as the stages after it saw it.

    Attributes:
        record: The run's record.
    """

    def __init__(self, run_uri: str):
        """Read the records of a run.

        Raises:
            ValueError: there is no such run, or its record is damaged.
            RefusedError: it lies elsewhere than what it says that it was made from.
        """
        self.record = read_run(run_uri)
        self._run_uri = run_uri
        self._seen: list[tuple[str, Reference]] = []
        """Who saw an attempt, and as what; the latest stage last."""
        self._places = {_place(run_uri)}
        """Where the attempts lie that the run may be made from: with it, and with the runs that it repeats."""
        parent = parent_of(self.record)
        if parent is not None:
            runs = _place(run_uri).rpartition("/")[0]
            for reference in parent.inputs.values():
                place = _place(_run(reference.uri))
                self._check_place(reference, place.rpartition("/")[0] == runs)
                self._places.add(place)
                self._hear(reference.uri)
            self._seen += [("its run.json", reference) for reference in parent.inputs.values()]
        for stage in recorded_stages(self.record.config, self.record.extra):
            uri = committed_attempt(run_uri, stage)
            if uri is not None:
                for reference in self._hear(uri):
                    self._check_place(reference, _place(_run(reference.uri)) in self._places)

    def find(self, stage: str, seen_by: StageManifest | None = None) -> tuple[Reference, StageManifest]:
        """The attempt of a stage that the run's later stages built on; where there are none, its newest committed one.

        Args:
            stage: The stage.
            seen_by: A later stage whose input is meant.

        Raises:
            NotCommittedError: the run has no such attempt, or its manifest is gone.
            ChangedOutputError: its manifest isn't the one that a later stage saw; with both digests.
        """
        known = self._seen + (
            [(f"{seen_by.stage} of run {seen_by.run_id}", reference) for reference in seen_by.inputs.values()]
            if seen_by
            else []
        )
        seen = [(witness, reference) for witness, reference in known if _stage(reference.uri) == stage]
        uri = seen[-1][1].uri if seen else committed_attempt(self._run_uri, stage)
        run_id = self.record.run_id
        if uri is None:
            place = storage.join(self._run_uri, stage)
            raise NotCommittedError(
                f"stage {stage} of run {run_id} is not committed: no attempt in {place} has a {MANIFEST}"
            )
        try:
            data = storage.read_bytes(storage.join(uri, MANIFEST))
        except FileNotFoundError:
            by = "".join(f"; {witness} saw {reference.digest} there" for witness, reference in seen[-1:])
            raise NotCommittedError(
                f"stage {stage} of run {run_id} is not committed: {uri}/{MANIFEST} is not there{by}"
            )
        digest = storage.digest(data)
        for witness, reference in seen:
            if reference.uri == uri and reference.digest != digest:
                raise ChangedOutputError(
                    f"stage {stage} of run {run_id} was changed: {uri}/{MANIFEST} is {digest}, and {witness} saw "
                    f"{reference.digest}"
                )
        manifest, _ = read_manifest(uri)
        return Reference(uri=uri, digest=digest), manifest

    def _check_place(self, reference: Reference, is_right: bool) -> None:
        if not is_right:
            raise RefusedError(
                f"run {self.record.run_id} in {self._run_uri} was made from {reference.uri}, which lies neither there "
                f"nor with a run beside it that it repeats; if the folder is a copy, take the run where it was made, "
                f"in {_run(reference.uri)}"
            )

    def _hear(self, attempt_uri: str) -> tuple[Reference, ...]:
        """Take down what an attempt built on, and what that built on, as far as it is another run's."""
        try:
            manifest, _ = read_manifest(attempt_uri)
        except ValueError:  # Damaged or gone: as a witness it is of no use. Where it is an input, `find` says so.
            return ()
        for reference in manifest.inputs.values():
            if not reference.uri.startswith(storage.join(self._run_uri, "")):
                self._hear(reference.uri)
            self._seen.append((f"{manifest.stage} of run {manifest.run_id}", reference))
        return tuple(manifest.inputs.values())


def _stage(attempt_uri: str) -> str:
    return attempt_uri.rstrip("/").split("/")[-2]


def _run(attempt_uri: str) -> str:
    return attempt_uri.rstrip("/").rsplit("/", 2)[0]


def _place(run_uri: str) -> str:
    """One name of a folder, whichever of its names leads there: a local one can be reached through links."""
    filesystem, path = storage.open_filesystem(run_uri)
    return os.path.realpath(path) if is_local(filesystem) else run_uri
