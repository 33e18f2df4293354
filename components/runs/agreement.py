"""Whether what was begun under one configuration may be continued under another."""

from collections.abc import Iterator
from typing import Any

from thaw.components.config import RunConfig
from thaw.components.refused import RefusedError


def check_same_config(saved: dict[str, Any], config: RunConfig) -> None:
    """Refuses a configuration under which what was trained would mean something else.

    The seed, the model and the data must agree, the data's window excepted: another day continues the same model.
    What tells how to train, to measure or where to run may differ.

    Args:
        saved: The document that was saved with the checkpoint.
        config: The run's document.

    Raises:
        RefusedError: naming every key that differs, with both values.
    """
    _refuse("the checkpoint was trained under another configuration", _identity(saved), _identity(config))


def check_same_data(saved: dict[str, Any], config: RunConfig) -> None:
    """Refuses a configuration under which another window would have been selected, or its files read otherwise.

    Args:
        saved: The document that the window was selected by.
        config: The run's document.

    Raises:
        RefusedError: naming every key that differs, with both values.
    """
    what = "the window was selected under another configuration; begin with select-window"
    _refuse(what, {"data": saved["data"]}, {"data": config.model_dump(mode="json")["data"]}, "the window's manifest")


def check_same_plan(saved: dict[str, Any], plan: dict[str, Any]) -> None:
    """Refuses to go on in mid-epoch where a step's number would mean other rows, or another way to train them.

    Args:
        saved: The plan that was saved with the checkpoint.
        plan: What this job would do.

    Raises:
        RefusedError: naming every key that differs, with both values.
    """
    _refuse("the checkpoint is of an epoch that goes another way; start a new run", saved, plan)


def check_same_run(run_uri: str, recorded: dict[str, Any], config: RunConfig) -> None:
    """Refuses to go on with a run whose record says another configuration.

    Args:
        run_uri: Folder of the run.
        recorded: The document of its record.
        config: The document that was handed in.

    Raises:
        ValueError: naming the run, and every key that differs, with both values.
    """
    what = f"{run_uri} was begun with another configuration; choose another run id"
    _refuse(what, recorded, config.model_dump(mode="json"), "its record")


_ABSENT = object()


def _refuse(what: str, saved: dict[str, Any], present: dict[str, Any], place: str = "the checkpoint") -> None:
    before, now = dict(flat(saved)), dict(flat(present))
    differences = [
        f"{key}: {before.get(key, 'absent')!r} in {place}, {now.get(key, 'absent')!r} in this run"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]
    if differences:
        raise RefusedError(f"{what}: " + "; ".join(differences))


def _identity(config: RunConfig | dict[str, Any]) -> dict[str, Any]:
    document = config.model_dump(mode="json") if isinstance(config, RunConfig) else config
    data = {key: value for key, value in document.get("data", {}).items() if key != "window"}
    return {"seed": document.get("seed"), "model": document.get("model"), "data": data}


def flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a document, each by its whole key: `data.window.num_days`."""
    below: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not value or not below:
        yield key, value
        return
    for name, part in below:
        yield from flat(part, f"{key}.{name}" if key else str(name))
