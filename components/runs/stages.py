"""Which stages a run has, in their order. Each builds on the window and on the stage before it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from thaw.components.config import RunConfig
from thaw.components.config.recipe import Policy
from thaw.components.refused import RefusedError

BACKBONE_STAGES = ("select-window", "prepare-backbone", "publish-backbone")
"""Of a run that makes a backbone for others to fetch."""


def whole_stages(policies: Sequence[Policy], has_gate: bool) -> tuple[str, ...]:
    """The stages of a run from the window to the report, and to its promotion where the configuration has a gate."""
    gate = ("promote",) if has_gate else ()
    return ("select-window", "prepare-backbone", *stage_names(policies), "evaluate", *gate)


def kind_stages(kind: str, whole: Sequence[str]) -> tuple[str, ...]:
    """The stages that a pipeline of a kind does itself.

    Args:
        kind: `whole`, `backbone`, `from:<stage>` for that stage and those after it, `stage:<stage>` for it alone; these
            two with `backbone:` before them, of the stages of that kind.
        whole: The stages of a whole run.

    Raises:
        RefusedError: there is no such kind or stage.
    """
    if kind == "whole":
        return tuple(whole)
    if kind == "backbone":
        return BACKBONE_STAGES
    if whole_kind(kind) == "backbone":
        whole = BACKBONE_STAGES
    span, colon, first = kind.removeprefix("backbone:").partition(":")
    if not colon or span not in ("from", "stage"):
        raise RefusedError(
            f"kind {kind!r}: give whole, backbone, from:<stage>, stage:<stage>, backbone:from:<stage> or "
            f"backbone:stage:<stage>"
        )
    if first not in whole:
        raise RefusedError(f"stage {first!r}: the stages of this configuration are {', '.join(whole)}")
    start = whole.index(first)
    return tuple(whole[start:] if span == "from" else whole[start : start + 1])


def whole_kind(kind: str) -> str:
    """The kind, `whole` or `backbone`, that has all the stages of which a kind has a part."""
    return "backbone" if kind.partition(":")[0] == "backbone" else "whole"


def part_kind(kind: str, first: str, only: bool) -> str:
    """The kind of a rerun.

    Args:
        kind: Of the run that it repeats.
        first: The stage that it begins with.
        only: It does no stage after it.
    """
    part = f"{'stage' if only else 'from'}:{first}"
    return part if whole_kind(kind) == "whole" else f"backbone:{part}"


def config_stages(config: RunConfig, kind: str = "whole") -> tuple[str, ...]:
    """The stages that a run of a configuration and a kind does itself.

    Raises:
        RefusedError: there is no such kind or stage; a run that is to publish a backbone makes none, or knows no place.
    """
    publishes = whole_kind(kind) == "backbone"
    if publishes and config.backbone.pretrain is None:
        raise RefusedError(
            "the document fetches its backbone, and a run that publishes one makes it: backbone.pretrain"
        )
    if publishes and config.backbone.publish_prefix_uri is None:
        raise RefusedError("backbone.publish_prefix_uri is not set: name the folder that runs fetch backbones from")
    return kind_stages(kind, whole_stages(config.recipe.policies, config.promotion is not None))


def recorded_stages(config: dict[str, Any], extra: dict[str, Any]) -> tuple[str, ...]:
    """The stages that a run does itself, as its record tells.

    Args:
        config: The document of the record.
        extra: What else the record has.

    Raises:
        ValueError: it doesn't tell.
    """
    recipe, kind = config.get("recipe"), extra.get("kind", "whole")
    policies = recipe.get("policies") if isinstance(recipe, dict) else None
    if not isinstance(policies, list) or not all(policy in get_args(Policy) for policy in policies):
        raise ValueError(f"config.recipe.policies is {policies!r}, and no list of {', '.join(get_args(Policy))}")
    return kind_stages(str(kind), whole_stages(policies, config.get("promotion") is not None))


def stage_names(policies: Sequence[Policy]) -> tuple[str, ...]:
    """The training stages of a recipe: (frozen, frozen) gives train-frozen, train-frozen-2."""
    seen: Counter[str] = Counter()
    names = []
    for policy in policies:
        seen[policy] += 1
        names.append(f"train-{policy}" + (f"-{seen[policy]}" if seen[policy] > 1 else ""))
    return tuple(names)
