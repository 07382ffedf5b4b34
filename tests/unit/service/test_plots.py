"""The page of a search: the contents of its figures, and the texts for empty ones."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest

from determined_service.plots import best, importance, parallel
from determined_service.plots.model import PlottedOutcome, PlottedTrial, Point, Search, thin
from determined_service.plots.page import make_sections, render_page
from determined_service.plots.section import PlotSection, core_range, label
from tests.unit.service.plotted import BEGIN, asha, config, search
from tests.waiting import TIMEOUT_S

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \"'&amp; %{x} {{ 7 * 7 }}"


@pytest.fixture(autouse=True)
def _without_plotlys_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its five megabytes are slow to parse in Python, and are not tested here."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", lambda: "/* Plotly */")


def sections(of: Search) -> dict[str, PlotSection]:
    return {section.key: section for section in make_sections(of)}


def traces(section: PlotSection) -> list[Any]:
    assert section.figure is not None, section.notes
    return list(section.figure.data)


def drawn_ids(section: PlotSection) -> set[int]:
    """The trials whose lines are drawn."""
    lines = [trace for trace in traces(section) if trace.mode == "lines" and not trace.name]
    return {trial for trace in lines for trial in trace.customdata if trial is not None}


class Page(HTMLParser):
    """Tags with their attributes, and the content of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.figures: dict[str, Any] = {}
        self._script: dict[str, str | None] | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None and self._script.get("type") == "application/json":
            self.figures[str(self._script["id"]).removeprefix("data-")] = json.loads(data)
            self._script = None


def test_every_section_has_its_figure() -> None:
    page = Page(render_page(asha()))
    assert list(page.figures) == ["curves", "best", "parallel", "importance", "rungs"]
    assert all(figure["data"] for figure in page.figures.values())


def test_the_page_fetches_nothing() -> None:
    page = Page(render_page(asha(prefect_url="http://prefect:4200", flow_run_id="a-b")))
    sources = [attrs for tag, attrs in page.tags if "src" in attrs or tag in ("link", "iframe")]
    assert sources == []
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == ["http://prefect:4200/runs/flow-run/a-b"]


def test_users_text_is_never_markup() -> None:
    made = asha(name=HOSTILE, description=HOSTILE, labels=[HOSTILE], reason=HOSTILE)
    made.config["searcher"]["metric"] = HOSTILE
    made.config["hyperparameters"] = {}
    for trial in made.trials:
        trial.hparams = {HOSTILE: {HOSTILE: f"{HOSTILE}{trial.id % 2}", "same": HOSTILE}}
        trial.hparams |= {"x": trial.id}
    text = render_page(made)
    page = Page(text)
    clean = Page(render_page(asha(description="d", reason="r", labels=["l"])))
    kinds = [tag for tag, _ in page.tags if tag not in ("th", "td")]
    assert kinds == [tag for tag, _ in clean.tags if tag not in ("th", "td")]
    assert not [attrs for _, attrs in page.tags if "onerror" in attrs]
    assert "49" not in text.split("<h1>")[1].split("</h1>")[0]
    # Plotly interprets markup and templates in its input.
    curves = page.figures["curves"]["layout"]
    assert "<" not in curves["yaxis"]["title"]["text"]
    assert label("%{x}") != "%{x}"
    data = re.findall(r'<script type="application/json".*?</script>', text, flags=re.S)
    assert data
    assert all(block.count("<") == 2 for block in data)


def test_only_the_searcher_is_shown_of_a_configuration() -> None:
    made = asha()
    made.config["environment"] = {"environment_variables": ["TOKEN=very-secret"]}
    assert "very-secret" not in render_page(made)


@pytest.mark.parametrize("trials", [0, 1, 2])
def test_small_searches(trials: int) -> None:
    made = asha(trials)
    found = sections(made)
    assert (found["curves"].figure is None) == (trials == 0)
    assert (found["best"].figure is None) == (trials == 0)
    assert (found["parallel"].figure is None) == (trials < 2)
    assert found["importance"].figure is None
    assert (found["rungs"].figure is None) == (trials == 0)
    assert all(section.figure is not None or section.notes for section in found.values())
    assert f"<b>{trials}</b>" in render_page(made)


def test_curves_show_every_trial_and_the_best() -> None:
    made = asha()
    curves = sections(made)["curves"]
    assert drawn_ids(curves) == {trial.id for trial in made.trials}
    winner = max(made.trials, key=lambda trial: trial.metric or 0)
    (line,) = [trace for trace in traces(curves) if trace.name == f"best: trial {winner.id}"]
    assert line.y[-1] == winner.metric
    named = {trace.name: len(trace.x) for trace in traces(curves) if trace.mode == "markers"}
    outcomes = [trial.outcome for trial in made.trials]
    assert named[PlottedOutcome.STOPPED.value] == outcomes.count(PlottedOutcome.STOPPED)
    assert named[PlottedOutcome.COMPLETED.value] == outcomes.count(PlottedOutcome.COMPLETED)
    rungs = {shape.x0 for shape in curves.figure.layout.shapes}  # type: ignore[union-attr]
    assert rungs == {1, 3, 9}
    # Of 9 epochs, a trial of the first bracket went on from 1 and from 3, of the second from 3.
    went_on = sum(
        len(made.ladders[t.bracket or 0]) - 1
        for t in made.trials
        if t.outcome is PlottedOutcome.COMPLETED
    )
    rings = {
        (i, x)
        for t in traces(curves)
        if t.name == "went on"
        for i, x in zip(t.customdata, t.x, strict=True)
    }
    assert went_on > 0
    assert len({i for i, _ in rings}) == outcomes.count(PlottedOutcome.COMPLETED)


def test_rungs_are_not_drawn_on_steps_of_another_unit() -> None:
    made = asha()
    for points in made.curves.values():
        points[:] = [Point(point.x * 100, point.y, point.time) for point in points]
    figure = sections(made)["curves"].figure
    assert figure is not None
    assert figure.layout.shapes == ()


def test_values_that_are_not_finite_are_gaps() -> None:
    made = asha()
    trial = made.trials[0]
    trial.metric, trial.best_time, trial.not_finite = None, None, 3
    made.curves[trial.id] = [Point(step, None, BEGIN) for step in (1, 2, 3)]
    found = sections(made)
    assert any("3 values of 1 trial are NaN or infinite" in note for note in found["curves"].notes)
    assert any("1 trial" in note for note in found["parallel"].notes)
    assert len(traces(found["parallel"])[0].dimensions[0]["values"]) == len(made.trials) - 1
    assert "NaN" not in json.dumps(Page(render_page(made)).figures)


def test_a_diverged_trial_does_not_hide_the_others() -> None:
    made = asha()
    made.trials[0].metric = -1e30
    made.curves[1].append(Point(10, -1e30, BEGIN))
    found = sections(made)
    figure = found["curves"].figure
    assert figure is not None
    low, high = figure.layout.yaxis.range
    assert -1 < low < high < 2
    assert any("far from the others" in note for note in found["curves"].notes)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 2.0, 3.0, 4.0, 1e9], 4),
        ([1.0, 2.0, 3.0, 4.0, 5.0], None),
        # The best value is never left out, even as an outlier.
        ([-1e9, 2.0, 3.0, 4.0, 5.0], None),
        ([1.0] * 9, None),
        ([1.0, 1e9], None),
        ([], None),
    ],
)
def test_the_farthest_step(values: list[float], shown: float | None) -> None:
    for sign in (1, -1):
        found = core_range([sign * value for value in values], smaller_is_better=sign == 1)
        assert (found is None) == (shown is None)
        if found is not None and shown is not None:
            assert sorted(sign * edge for edge in found) == pytest.approx([0.85, shown + 0.15])


def test_large_searches_are_sampled_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parallel, best, importance):
        monkeypatch.setattr(module, "MOST_TRIALS", 40)
    made = asha(60)
    kept = made.sample(30)
    assert len(kept) == 30
    assert {trial.id for trial in made.ranked()[:15]} <= {trial.id for trial in kept}
    made.curves = {trial.id: made.curves[trial.id] for trial in kept}
    made.curve_points = 5
    found = sections(made)
    assert drawn_ids(found["curves"]) == {trial.id for trial in kept}
    for section, said in (
        ("curves", "The figure shows 30 of 60 trials"),
        ("curves", "Curves of more than 5 points are thinned"),
        ("best", "Dots are shown for 40 of 60 trials"),
        ("best", "leave some points out"),
        ("parallel", "The figure shows 40 of 60 trials"),
        ("importance", "Computed from 40 of 60 trials"),
    ):
        assert any(said in note for note in found[section].notes), (section, said)
    assert not sections(asha())["best"].notes


def test_thinning_is_even() -> None:
    assert thin(range(10), 5) == [0, 2, 4, 6, 8]
    assert thin(range(3), 5) == [0, 1, 2]
    assert thin(range(10), 0) == []


def test_the_running_best_ends_where_the_search_does() -> None:
    made = asha(end=BEGIN + datetime.timedelta(minutes=10), state="COMPLETED")
    line = traces(sections(made)["best"])[-1]
    assert line.x[-1] == 10
    assert list(line.y) == sorted(line.y)
    assert line.y[-1] == max(trial.metric or 0 for trial in made.trials)


def test_smaller_is_better_turns_colours_and_order() -> None:
    made = asha(config=config(smaller_is_better=True))
    assert made.ranked()[0].metric == min(trial.metric or 0 for trial in made.trials)
    line = traces(sections(made)["parallel"])[0].line
    larger = traces(sections(asha())["parallel"])[0].line
    assert line.colorscale[0][1] == larger.colorscale[-1][1]


def test_parallel_coordinates_of_all_kinds() -> None:
    made = asha()
    for trial in made.trials:
        trial.hparams["layers"] = [1, 2] if trial.id % 2 else [3]
        if trial.id % 3:
            trial.hparams["momentum"] = 0.1 * trial.id
    found = sections(made)
    dimensions = {one.label: one for one in traces(found["parallel"])[0].dimensions}
    assert list(dimensions) == [
        "hidden", "layers", "momentum", "nesterov", "optimizer.learning_rate", "optimizer.name",
        "accuracy",
    ]  # fmt: skip
    assert dimensions["layers"].ticktext == ("[1, 2]", "[3]")
    assert dimensions["nesterov"].ticktext == ("false", "true")
    assert dimensions["momentum"].ticktext[0] == "(none)"
    assert all(-4 <= value <= -1 for value in dimensions["optimizer.learning_rate"]["values"])
    rate = dimensions["optimizer.learning_rate"]
    assert "0.01" in rate.ticktext
    assert rate.tickvals[rate.ticktext.index("0.01")] == -2
    assert any("seed = 3" in note for note in found["parallel"].notes)


def test_many_hyperparameters_leave_room_for_the_important_ones() -> None:
    made = asha(200)
    for trial in made.trials:
        trial.hparams |= {f"noise{i:02}": (trial.id * (i + 7)) % 11 for i in range(20)}
    found = sections(made)
    labels = [one.label for one in traces(found["parallel"])[0].dimensions]
    assert len(labels) == 13
    assert "…learning_rate" in labels
    assert any("to save space" in note for note in found["parallel"].notes)


def test_importance_finds_the_important_hyperparameter() -> None:
    section = sections(asha(200))["importance"]
    (bars,) = traces(section)
    assert bars.y[-1] == "optimizer.learning_rate"
    assert bars.x[-1] > 0.5
    assert sum(bars.x) == pytest.approx(1)
    assert "seed" not in bars.y


def test_importance_without_optuna_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    section = sections(asha(200))["importance"]
    assert section.figure is None
    assert "pip install" in section.notes[0]


def test_importance_needs_no_more_than_optuna() -> None:
    """Of what Optuna can use, an installation with the extras `cluster` and `tpe` has only NumPy."""
    code = """
import sys
for name in ("sklearn", "scipy", "pandas", "matplotlib", "torch"):
    sys.modules[name] = None
from determined_service.plots.importance import hyperparameter_importance
from tests.unit.service.plotted import asha
print(hyperparameter_importance(asha(50))[0].figure is not None)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert ran.stdout == "True\n", ran.stderr


def test_trials_without_hyperparameters() -> None:
    made = asha()
    for trial in made.trials:
        trial.hparams = {}
    found = sections(made)
    assert found["parallel"].figure is None
    assert found["importance"].figure is None
    assert found["curves"].figure is not None


def test_a_plug_ins_section_is_drawn_without_it() -> None:
    made = search(config={"searcher": {"name": "not-installed", "metric": "m"}})
    made.trials = [PlottedTrial(1, "r", PlottedOutcome.RUNNING, {"x": 1})]
    found = sections(made)
    assert "no rungs" in found["rungs"].notes[0]
    assert "<h2>Rung occupancy</h2>" in render_page(made)
