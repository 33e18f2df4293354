"""Whether what was begun under one configuration may be continued under another."""

from collections.abc import Iterator, Sequence
from typing import Any

from thaw.components.config import RunConfig
from thaw.components.refused import RefusedError
from thaw.components.runs.stages import stage_names

_COTRAIN = ("train-cotrain", "train-cotrain-2")
_TRAIN = ("train-frozen", "train-frozen-2", *_COTRAIN)

DECIDES = {
    "backbone.pretrain": ("prepare-backbone",),
    "backbone.fetch": ("prepare-backbone",),
    "backbone.publish_prefix_uri": ("publish-backbone",),
    "recipe.table_optimizer": ("prepare-backbone", *_COTRAIN),
    "recipe.table_weight_decay": ("prepare-backbone", *_COTRAIN),
    "recipe.table_lr": _COTRAIN,
    "recipe.table_momentum": _COTRAIN,
    "recipe.dense_optimizer": _TRAIN,
    "recipe.dense_lr": _TRAIN,
    "training.global_batch_size": _TRAIN,
    "training.num_lanes": ("prepare-backbone", *_TRAIN),
    "training.shuffle_rows": ("prepare-backbone", *_TRAIN),
    "training.shuffle": ("prepare-backbone", *_TRAIN),
    "training.staleness": ("prepare-backbone", *_COTRAIN),
    "evaluation": ("evaluate",),
}
"""The stages whose results a key decides. What is not here may change at any stage: `promotion`, which only the last
stage reads; `cluster` and the rest of `training`, which say where and how fast. `seed`, `model`, `data` and
`recipe.policies` have rules of their own, below."""


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


def check_same_past(saved: dict[str, Any], config: RunConfig, stages: Sequence[str], first: str) -> None:
    """Refuses a configuration that says something else of stages that are done, and nothing of those to come.

    A record of it would lie: of how the model was made that it evaluates.

    Args:
        saved: The document of the stage before `first`.
        config: The run's document.
        stages: All stages of a run of this document, in order.
        first: The first of them that is done anew.

    Raises:
        RefusedError: naming every such key, with both values, and the stage to begin at.
    """
    done = stages[: stages.index(first)]
    before, now = dict(flat(saved)), dict(flat(config.model_dump(mode="json")))
    faults = []
    for key in _differing(before, now):
        decided = next((decided for name, decided in DECIDES.items() if f"{key}.".startswith(f"{name}.")), ())
        latest = next((stage for stage in reversed(stages) if stage in decided), None)
        if latest in done:
            faults.append(f"{_difference(key, before, now, 'the parent')}: begin at {latest} or before")
    was, is_now = saved.get("recipe", {}).get("policies", []), list(config.recipe.policies)
    for number, stage in enumerate(stage_names(is_now)):
        if stage in done and was[number : number + 1] != is_now[number : number + 1]:
            faults.append(f"recipe.policies: {was} in the parent, {is_now} in this run: begin at {stage} or before")
            break
    if faults:
        raise RefusedError(f"what is done before {first} was done under another configuration: {'; '.join(faults)}")


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
    differences = [_difference(key, before, now, place) for key in _differing(before, now)]
    if differences:
        raise RefusedError(f"{what}: " + "; ".join(differences))


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    keys = sorted(before.keys() | now.keys())
    return [key for key in keys if before.get(key, _ABSENT) != now.get(key, _ABSENT)]


def _difference(key: str, before: dict[str, Any], now: dict[str, Any], place: str) -> str:
    return f"{key}: {before.get(key, 'absent')!r} in {place}, {now.get(key, 'absent')!r} in this run"


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
