import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from scored_log import Scored, write_predictions

from thaw.components.evaluate.measure import measure
from thaw.components.evaluate.plots import loss_curve
from thaw.components.evaluate.provenance import PipelineRecord, Provenance, StageRecord, TraceEvent
from thaw.components.evaluate.report import render_report
from thaw.components.evaluate.summary import summary_table

DENSE, LOOKUP = "dense forward and backward", "lookup and output dist"
PIPELINE = PipelineRecord(
    staleness=1,
    ms_a_step={DENSE: 12.0, LOOKUP: 3.0, "sparse backward and update": 2.0, "wait": 0.5},
    bytes_a_step={LOOKUP: 1_500_000, "sparse backward and update": 500_000},
    hidden_fraction=0.9,
    exposed_share_before=0.294,
    exposed_share_after=0.04,
    shared_rows_share=0.22,
    trace=tuple(
        TraceEvent(row, where, batch, begin_s=5 + batch * 0.02, end_s=5 + batch * 0.02 + 0.012)
        for batch in (20, 21)
        for row, where in ((LOOKUP, "chain thread"), (DENSE, "main thread"))
    ),
)
RUN = Provenance(
    run_id="demo-1",
    stages=(
        StageRecord("select-window", 1.0),
        StageRecord("train-frozen", 62.0, "frozen", 750, tuple((step, 1 / step) for step in range(20, 2000, 20))),
        StageRecord("train-cotrain", 71.0, "cotrain", 750, ((20, 0.4), (40, 0.39)), PIPELINE),
    ),
    versions={"torch": "2.13.0"},
)


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(scored: Scored) -> str:
    result = measure(scored.config, scored.window, scored.predictions_uri)
    return render_report(result, scored.config, scored.window, RUN)


def test_the_page_needs_nothing_beside_it(page: str) -> None:
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe", "object"} & set(parsed.tags)
    references = [value for name, value in parsed.attributes if name in ("href", "src") and value]
    assert all(value.startswith("#") for value in references)
    assert "http" not in page and "@import" not in page
    assert len(page.encode()) < 500_000


def test_ids_are_unique_over_all_plots_and_every_reference_finds_its_own(page: str) -> None:
    ids = [value for name, value in Page(page).attributes if name == "id"]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r"url\(#([^)]*)\)", page)) | set(re.findall(r'href="#([^"]*)"', page))
    assert references and references <= set(ids)


def test_plots_take_their_colours_from_the_page(page: str) -> None:
    plots = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert plots.count("<svg") == 5  # two heads, the loss, the timeline, the window
    assert not re.search(r"#[0-9a-f]{6}", plots)
    assert "var(--accent)" in plots and "var(--ink)" in plots


def test_equal_results_give_equal_pages(scored: Scored, page: str) -> None:
    result = measure(scored.config, scored.window, scored.predictions_uri)
    assert render_report(result, scored.config, scored.window, RUN) == page


def test_the_page_says_what_ran_and_how_it_came_out(page: str) -> None:
    text = " ".join(Page(page).text.split())
    for fact in (
        "demo-1", "both baselines", "user and item means", "Bayes optimum", "train-cotrain", "1 min 11 s", "torch",
        "frozen, then cotrain", "global_batch_size: 8", "from D = 2026-03-06 on", "less is wanted",
        "% of the rows are of users that the window doesn’t hold",
    ):  # fmt: skip
        assert fact in text


def test_the_page_shows_what_is_undefined_and_why(scored: Scored, tmp_path: Path) -> None:
    labels = scored.log.labels.copy()
    labels[..., 1] = 0
    write_predictions(replace(scored.log, labels=labels), scored.log.truths, tmp_path / "silent")
    result = measure(scored.config, scored.window, str(tmp_path / "silent"))
    text = " ".join(Page(render_report(result, scored.config, scored.window, RUN)).text.split())
    assert "hide, evaluation rows: AUC, NE, calibration, HIT@3: no row has label 1" in text
    assert "AUC undefined, no row has label 1" in text
    assert "nan" not in text.lower()


def test_names_from_outside_cannot_become_markup(scored: Scored) -> None:
    result = measure(scored.config, scored.window, scored.predictions_uri)
    run = Provenance(run_id="<script>alert(1)</script>", stages=())
    page = render_report(result, scored.config, scored.window, run)
    assert "<script" not in page and "&lt;script&gt;" in page


def test_a_long_epoch_is_drawn_with_few_points() -> None:
    losses = tuple((step, 0.5 + step % 7 / 100) for step in range(100_000))
    assert len(loss_curve([StageRecord("train-frozen", 1.0, "frozen", 1, losses)])) < 40_000


def test_the_summary_has_a_line_a_head(scored: Scored) -> None:
    result = measure(scored.config, scored.window, scored.predictions_uri)
    console = Console(file=io.StringIO(), width=140)
    console.print(summary_table(result))
    header, *lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert header.split()[:2] == ["head", "AUC"]
    assert [line.split()[0] for line in lines] == ["click", "hide"]
    assert f"{result.heads[0].model.auc:.4f}" in lines[0]


def test_the_page_tells_what_the_pipeline_hid_and_draws_it_in_its_own_words(page: str) -> None:
    text = Page(page).text
    row = re.search(r"train-cotrain12\.05\.00\.590%29%4\.0%122%2\.00", re.sub(r"\s", "", text))
    assert row, text
    for word in (DENSE, LOOKUP, "chain thread", "20", "21"):
        assert word in text


def test_a_run_without_a_pipeline_has_no_word_of_it(scored: Scored) -> None:
    result = measure(scored.config, scored.window, scored.predictions_uri)
    plain = replace(RUN, stages=tuple(replace(stage, pipeline=None) for stage in RUN.stages))
    assert "Sparse beside dense" not in render_report(result, scored.config, scored.window, plain)
