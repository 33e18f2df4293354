"""Whether a checkpoint may be continued under a configuration."""

from collections.abc import Iterator
from typing import Any

from thaw.components.config import RunConfig


def check_same_config(saved: dict[str, Any], config: RunConfig) -> None:
    """Refuses a configuration under which what was trained would mean something else.

    The seed, the model and the data must agree, the data's window excepted: another day continues the same model.
    What tells how to train, to measure or where to run may differ.

    Args:
        saved: The document that was saved with the checkpoint.
        config: The run's document.

    Raises:
        ValueError: naming every key that differs, with both values.
    """
    before, now = _identity(saved), _identity(config.model_dump(mode="json"))
    differences = [
        f"{key}: {before.get(key, 'absent')!r} in the checkpoint, {now.get(key, 'absent')!r} in this run"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]
    if differences:
        raise ValueError("the checkpoint was trained under another configuration: " + "; ".join(differences))


_ABSENT = object()


def _identity(document: dict[str, Any]) -> dict[str, Any]:
    data = {key: value for key, value in document.get("data", {}).items() if key != "window"}
    return dict(_flat({"seed": document.get("seed"), "model": document.get("model"), "data": data}))


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    below: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not value or not below:
        yield key, value
        return
    for name, part in below:
        yield from _flat(part, f"{key}.{name}" if key else str(name))
