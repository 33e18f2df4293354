"""One configuration document a run: a YAML file, validated into one immutable object.

Index of the sections:

    name, seed    here
    data          data.py      columns, tables, heads, window
    model         recipe.py    sizes of the ranker
    backbone      recipe.py    pretrain or fetch
    recipe        recipe.py    policies, optimizers, learning rates
    training      training.py  ranks, batches, reading, checkpoints
    evaluation    training.py  what the report measures
    promotion     promotion.py the gate that a run passes to be promoted
    cluster       training.py  image, namespace, resources
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from thaw.components.config.data import Data
from thaw.components.config.parse import parse_yaml
from thaw.components.config.promotion import Promotion
from thaw.components.config.recipe import Backbone, Model, Recipe
from thaw.components.config.section import Section
from thaw.components.config.training import Cluster, Evaluation, Training
from thaw.components.refused import RefusedError

MAX_PARAMETER_BYTES = 32 * 1000
PRESETS = ("small", "demo", "demo-lite", "movielens", "production")


class RunConfig(Section):
    """All that a run is told, its date and its place excepted."""

    name: str = Field(pattern=r"^[a-zA-Z][-_a-zA-Z0-9]*$", max_length=100)
    """Begins the run's id."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the initial weights, the shuffling and the generated data."""
    data: Data
    model: Model = Model()
    backbone: Backbone
    recipe: Recipe = Recipe()
    training: Training
    evaluation: Evaluation = Evaluation()
    promotion: Promotion | None = None
    cluster: Cluster = Cluster()

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        recipe, device = self.recipe, self.training.device
        # What the fused kernel of this device would take and do nothing with.
        if recipe.table_momentum:
            raise ValueError(
                f"recipe.table_momentum is {recipe.table_momentum}: FBGEMM's fused SGD and row-wise Adagrad have none "
                f"and ignore it, on cpu and on cuda; set it to 0"
            )
        if recipe.table_weight_decay and device == "cpu":
            raise ValueError(
                f"recipe.table_weight_decay is {recipe.table_weight_decay}, and training.device is cpu: FBGEMM's CPU "
                f"kernel ignores it; set it to 0, or train on cuda"
            )
        if recipe.table_weight_decay and recipe.table_optimizer == "sgd":
            raise ValueError(
                f"recipe.table_weight_decay is {recipe.table_weight_decay}: FBGEMM's fused SGD ignores it; set it "
                f"to 0, or take table_optimizer rowwise_adagrad"
            )
        if device == "cuda" and self.model.dim % 4:
            raise ValueError(f"model.dim is {self.model.dim}: FBGEMM's CUDA kernels take multiples of 4 alone")
        unknown = set(self.training.sharding) - set(self.data.tables)
        if unknown:
            raise ValueError(f"training.sharding names unknown tables {sorted(unknown)}")
        if self.model.contrastive.weight and not any(head.engagement for head in self.data.heads):
            raise ValueError("model.contrastive has a weight, and no head has engagement: true")
        if self.promotion and self.promotion.head not in (heads := [head.name for head in self.data.heads]):
            raise ValueError(f"promotion.head is {self.promotion.head!r}, and the heads are {', '.join(heads)}")
        return self


class ConfigError(RefusedError):
    """The document is not valid. The message lists every fault with its place."""


def load(source: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The validated document.

    Args:
        source: The name of a preset, or the path of a YAML file.
        overrides: `key.sub=value` each, the value in YAML.

    Raises:
        ConfigError: unreadable, not YAML, unknown keys, wrong types or values; with every place.
    """
    place = f"preset {source}" if source in PRESETS else source
    try:
        if source in PRESETS:
            text = resources.files(__package__).joinpath("presets", f"{source}.yaml").read_text()
        else:
            text = Path(source).read_text()
        document = parse_yaml(text)
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}; give a YAML file, or one of the presets {', '.join(PRESETS)}")
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: not a YAML document: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{place}: the document is a {type(document).__name__}, not a mapping")
    for override in overrides:
        _apply(document, override)
    return _validate(json.dumps(document), place)


def changed(document: Mapping[str, Any], overrides: Sequence[str], place: str) -> RunConfig:
    """A document that was valid once, with some keys changed, validated anew.

    Args:
        document: As a run's record keeps it.
        overrides: As of `load`.
        place: Where it comes from, for the message.

    Raises:
        ConfigError: as `load`.
    """
    copied = json.loads(json.dumps(document))
    for override in overrides:
        _apply(copied, override)
    return _validate(json.dumps(copied), place)


def to_parameter(config: RunConfig) -> str:
    r"""The document as the JSON string that travels through the pipeline.

    kfp.local rewrites the text `python3` in arguments and reads `{{$`; both can only stand inside JSON strings, and are
    escaped there (`python\u0033`, `\u007b{$`), which every JSON reader undoes.

    Raises:
        ConfigError: it is longer than a pipeline parameter may be.
    """
    text = config.model_dump_json().replace("python3", r"python\u0033").replace("{{$", r"\u007b{$")
    if len(text.encode()) > MAX_PARAMETER_BYTES:
        raise ConfigError(
            f"the document is {len(text.encode())} bytes of JSON; at most {MAX_PARAMETER_BYTES} can travel"
        )
    return text


def from_parameter(text: str) -> RunConfig:
    """The document from the JSON string that `to_parameter` gave.

    Raises:
        ConfigError: as `load`.
    """
    return _validate(text, "parameter config")


def _validate(text: str, place: str) -> RunConfig:
    try:
        return RunConfig.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"{place}: " + "\n".join(_faults(error))) from None


def _faults(error: ValidationError) -> list[str]:
    faults = []
    for fault in error.errors(include_url=False):
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            faults.append(f"{where}: no such key")
        elif fault["type"] in ("value_error", "missing"):
            faults.append(f"{where}: {fault['msg'].removeprefix('Value error, ')}".removeprefix(": "))
        else:
            faults.append(f"{where}: {fault['msg']}, not {fault['input']!r}")
    return faults


def _apply(document: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: write key.sub=value")
    try:
        parsed = parse_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML: {error}") from None
    *parents, last = key.split(".")
    target = document
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {override!r}: {parent} is not a section")
    target[last] = parsed
