"""The step `promote`: the run claims its date, if its evaluation passes the gate.

A run that does not pass has not failed: its report and its model are there, no retry would change them, and a schedule
whose days turn red for it would teach its owner to look away. So the step succeeds, and its manifest says `promoted:
false` and why; `thaw why RUN` says it too, and `thaw promoted` lists who passed.
"""

import datetime
from typing import Any, Protocol

from thaw.components.config import from_parameter
from thaw.components.config.promotion import Promotion
from thaw.components.events import emit
from thaw.components.promote.claims import ClaimedError, Promoted, Scores, claim, latest, read_scores
from thaw.components.refused import RefusedError
from thaw.components.runs import stage

STAGE = "promote"

ROUNDING = 1e-9
"""A drop of 0.705 - 0.7 is one of 0.005, whatever floats make of it."""


class Artifact(Protocol):
    """What the step needs of KFP's artifact: the folder of a stage's attempt."""

    uri: str


def run(config: str, run_uri: str, metrics: Artifact) -> None:
    """Judge the run by `promotion`, and claim its date if it passes and no other run has.

    Args:
        config: The run's document, as `to_parameter` gave it.
        run_uri: Folder of the run.
        metrics: The attempt of evaluate.

    Raises:
        NotCommittedError: evaluate is not committed.
        RefusedError: the configuration has no gate; the figures aren't what evaluate wrote.
    """
    settings = from_parameter(config)
    with stage(settings, run_uri, STAGE, {"metrics": metrics.uri}) as current:
        if current.committed:
            return
        gate = settings.promotion
        if gate is None:
            raise RefusedError("promotion is not set: name the metric that decides, or leave out the stage promote")
        evaluate, reference = current.manifests["metrics"], current.inputs["metrics"]
        assert evaluate.window is not None
        scores = read_scores(reference, evaluate)
        root, date = run_uri.rpartition("/runs/")[0], datetime.date.fromisoformat(evaluate.window["date"])
        why_not = judge(gate, scores, latest(root, before=date))
        if why_not is None:
            try:
                claim(run_uri, reference, evaluate, f"{gate.head} {gate.metric}")
            except ClaimedError as claimed:
                why_not = str(claimed)
        figures: dict[str, Any] = {"promoted": why_not is None, "value": scores[gate.head][gate.metric]}
        if why_not is not None:
            figures["why_not"] = why_not
            emit("warning", stage=STAGE, message=f"not promoted: {why_not}")
        current.commit(figures=figures, window=evaluate.window)


def judge(gate: Promotion, scores: Scores, before: Promoted | None) -> str | None:
    """Why a run must not be promoted; None where it may.

    Args:
        gate: The rule.
        scores: Of the run.
        before: The promoted run that it is measured against, where there is one.
    """
    what, value = f"{gate.head} {gate.metric}", scores[gate.head][gate.metric]
    if value is None:
        return f"{what} is undefined on the evaluation days"
    if gate.minimum is not None and value < gate.minimum:
        return f"{what} is {value:.6g}, below promotion.minimum {gate.minimum:g}"
    if gate.maximum is not None and value > gate.maximum:
        return f"{what} is {value:.6g}, above promotion.maximum {gate.maximum:g}"
    if gate.max_drop is None or before is None:
        return None
    former = before.scores.get(gate.head, {}).get(gate.metric)
    if former is None:
        return f"run {before.run_id}, promoted for {before.date}, has no {what} to measure a drop by"
    drop = value - former if gate.less_is_better else former - value
    if drop > gate.max_drop + ROUNDING:
        return (
            f"{what} is {value:.6g}, worse by {drop:.6g} than {former:.6g} of run {before.run_id}, promoted for "
            f"{before.date}; promotion.max_drop is {gate.max_drop:g}"
        )
    return None
