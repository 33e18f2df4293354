"""Numbers as people read them, and the verdict that the numbers give."""

from thaw.components.evaluate.result import Difference, EvaluationResult, HeadResult

UNDEFINED = "–"
CALIBRATED = (0.9, 1.1)
"""Calibration ratios outside are worth a word."""


def number(value: float | None, digits: int = 4) -> str:
    """A number with as many decimals, in figures of one width."""
    return UNDEFINED if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 4) -> str:
    """A difference, its sign always there."""
    return UNDEFINED if value is None else f"{value:+.{digits}f}".replace("-", "−")


def difference(value: Difference | None, digits: int = 4) -> str:
    """A difference and its margin: `+0.0113 ± 0.0021`."""
    if value is None:
        return UNDEFINED
    return signed(value.value, digits) + (f" ± {value.margin:.{digits}f}" if value.margin is not None else "")


def percent(share: float | None) -> str:
    """A share: `91%`, `0.4%`."""
    if share is None:
        return UNDEFINED
    return f"{share:.0%}" if share in (0, 1) or 0.095 <= share <= 0.995 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """Seconds: `8.4 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def headline(result: EvaluationResult) -> str:
    """The verdict in one sentence: where the model is worth more than a table of averages, and where not."""
    lost = [head.name for head in result.heads if any(outcome < 0 for outcome in _outcomes(head))]
    unclear = [head.name for head in result.heads if head.name not in lost and 0 in _outcomes(head)]
    if lost:
        also = f", and is not clearly better on {_listed(unclear)}" if unclear else ""
        return f"The model loses to a baseline on {_listed(lost)}{also}."
    if unclear:
        return f"The model is not clearly better than both baselines on {_listed(unclear)}."
    return "The model beats both baselines on every head, in ranking and in log-loss."


def sentence(head: HeadResult) -> str:
    """The verdict on one head."""
    parts = [_against(head, "auc", "AUC", better=1), _against(head, "log_loss", "log-loss", better=-1)]
    if head.excess_log_loss is not None:
        where = "above the Bayes optimum" if head.excess_log_loss >= 0 else "BELOW the Bayes optimum: chance, or a leak"
        parts[1] += f", {number(abs(head.excess_log_loss), 3)} {where}"
    ratio = head.model.calibration
    if ratio is not None and not CALIBRATED[0] <= ratio <= CALIBRATED[1]:
        parts.append(f"its scores add up to {number(ratio, 2)} times the labels: recalibrate before use")
    return "; ".join(parts) + "."


def _against(head: HeadResult, metric: str, name: str, better: int) -> str:
    """The metric and its place against the baseline that is best in it, which is its place against both."""
    value = getattr(head.model, metric)
    if value is None:
        return f"{name} undefined, {head.model.undefined[metric]}"
    best = max(reversed(head.baselines), key=lambda other: better * getattr(head.baselines[other], metric))
    gain: Difference = getattr(head.against[best], metric)
    place = f"level with {best} ({difference(gain, 3)})"
    if gain.is_clear and gain.value * better > 0:
        place = f"better than both baselines ({difference(gain, 3)} against {best})"
    elif gain.is_clear:
        place = f"WORSE than {best} ({difference(gain, 3)})"
    return f"{name} {number(value, 3)}, {place}"


def _outcomes(head: HeadResult) -> list[int]:
    """Against each baseline, in AUC and in log-loss: 1 is a clear win, -1 a clear loss, 0 neither or unknown."""
    gains = [(against.auc, 1) for against in head.against.values()]
    gains += [(against.log_loss, -1) for against in head.against.values()]
    return [0 if gain is None or not gain.is_clear else 1 if gain.value * better > 0 else -1 for gain, better in gains]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
