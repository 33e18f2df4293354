"""The report: one HTML file that needs nothing beside it, neither script nor network."""

import datetime
import hashlib
from importlib import resources

import yaml

from thaw.components.config import RunConfig
from thaw.components.evaluate import words
from thaw.components.evaluate.provenance import Provenance
from thaw.components.evaluate.result import EvaluationResult
from thaw.components.select_window.window import Window

TEMPLATE = "report.html.j2"


def render_report(result: EvaluationResult, config: RunConfig, window: Window, provenance: Provenance) -> str:
    """The page. Equal arguments give equal pages."""
    import jinja2
    from markupsafe import Markup

    from thaw.components.evaluate import plots

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": words.number,
        "signed": words.signed,
        "difference": words.difference,
        "percent": words.percent,
        "duration": words.duration,
        "days": _days,
    }
    trained = [stage for stage in provenance.stages if stage.losses]
    overlapped = [stage for stage in provenance.stages if stage.pipeline]
    traced = [stage for stage in overlapped if stage.pipeline and stage.pipeline.trace]
    template = resources.files("thaw.components.evaluate").joinpath(TEMPLATE).read_text()
    return environment.from_string(template).render(
        result=result,
        headline=words.headline(result),
        sentences={head.name: words.sentence(head) for head in result.heads},
        undefined=_undefined(result),
        config_name=config.name,
        config_text=yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        config_digest=hashlib.sha256(config.model_dump_json().encode()).hexdigest(),
        policies=config.recipe.policies,
        window=window,
        num_window_requests=sum(file.num_rows for file in window.training),
        run=provenance,
        calibration_plots={
            head.name: Markup(plots.calibration(head.name, head.calibration_bins))
            for head in result.heads
            if head.calibration_bins
        },
        loss_plot=Markup(plots.loss_curve(trained)) if trained else None,
        overlapped=overlapped,
        traced_stage=traced[-1].name if traced else None,
        timeline_plot=Markup(plots.timeline(traced[-1].pipeline.trace)) if traced and traced[-1].pipeline else None,
        window_plot=Markup(plots.window_days(window)),
    )


def _days(days: tuple[datetime.date, ...]) -> str:
    """The ends of a list of days."""
    return "none" if not days else str(days[0]) if len(days) == 1 else f"{days[0]} … {days[-1]}"


def _undefined(result: EvaluationResult) -> list[str]:
    """Why numbers of the model are missing: `click, evaluation rows: AUC, NE: no row has label 1`."""
    labels = {"auc": "AUC", "log_loss": "log-loss", "ne": "NE", "hit": f"HIT@{result.hit_k}", "ece": "ECE"}
    lines = []
    for head in result.heads:
        for rows, metrics in (("evaluation rows", head.model), ("train sample", head.train), ("known ids", head.warm)):
            names: dict[str, list[str]] = {}
            for name, reason in metrics.undefined.items():
                if metrics is not head.warm or name != "hit":  # which the page doesn't show
                    names.setdefault(reason, []).append(labels.get(name, name))
            lines += [f"{head.name}, {rows}: {', '.join(given)}: {reason}" for reason, given in names.items()]
    return lines
