"""The importance of hyperparameters, by PED-ANOVA.

Watanabe, Bansal, Hutter: "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary
Subspaces", 2023: it measures how differently the best tenth of the trials is distributed along each
hyperparameter. It is the only one of Optuna's evaluators that needs no scikit-learn, and it takes 0.6 s for
5,000 trials.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from plotly import graph_objects as go

from determined.common import installation
from determined_service.plots.hparams import Axis, axes
from determined_service.plots.model import Search, paths, thin
from determined_service.plots.section import PlotSection, count, label, layout

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LEAST_TRIALS = 10
MOST_TRIALS = 5000
MOST_BARS = 20


def hyperparameter_importance(search: Search) -> tuple[PlotSection, dict[str, float]]:
    """The section, and the shares by name ({} when they are not known); they sum up to 1."""
    section = PlotSection(
        "importance",
        "Hyperparameter importance",
        "How much the best tenth of the trials differs from all trials along each hyperparameter "
        "(PED-ANOVA). Each trial counts with its best value, however long it trained. With fewer than "
        "about 50 trials this is a hint, not a finding.",
    )
    ranked = search.ranked()
    trials = thin(ranked, MOST_TRIALS)
    found, _ = axes(search.config.get("hyperparameters"), [paths(trial) for trial in trials])
    usable = [axis for axis in found if axis.complete]
    if len(trials) < LEAST_TRIALS or not usable:
        section.notes.append(
            f"This figure needs at least {LEAST_TRIALS} trials with a finite metric and a "
            f"hyperparameter in which they differ; so far this search has {count(len(trials), 'trial')} "
            f"and {count(len(usable), 'such hyperparameter')}."
        )
        return section, {}
    metrics = [trial.metric for trial in trials if trial.metric is not None]
    try:
        shares = importances(usable, metrics, search.smaller_is_better)
    except ImportError:
        section.notes.append(
            f"This figure needs Optuna in the service's environment: {installation.command('tpe')}"
        )
        return section, {}
    if len(trials) < len(ranked):
        section.notes.append(
            f"Computed from {len(trials):,} of {count(len(ranked), 'trial')}, evenly spread."
        )
    partial = [axis.name for axis in found if not axis.complete]
    if partial:
        section.notes.append(f"Left out, because not every trial has them: {', '.join(partial)}.")
    if len(shares) > MOST_BARS:
        section.notes.append(f"The {MOST_BARS} most important of {len(shares)} are shown.")
    section.figure = _figure(dict(sorted(shares.items(), key=lambda item: -item[1])[:MOST_BARS]))
    return section, shares


def importances(
    found: list[Axis], metrics: list[float], smaller_is_better: bool
) -> dict[str, float]:
    """The share of each of ``found``, by name; ``metrics`` are finite, one per trial.

    Raises ImportError without Optuna.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    # Its evaluator calls itself experimental, and warns of few trials; the page does so too.
    warnings.simplefilter("ignore", UserWarning)
    # By number: the names are the user's.
    distributions = {str(i): _distribution(axis) for i, axis in enumerate(found)}
    study = optuna.create_study(direction="minimize" if smaller_is_better else "maximize")
    study.add_trials(
        optuna.trial.create_trial(
            params={str(i): _value(axis, place) for i, axis in enumerate(found)},
            distributions=distributions,
            value=metric,
        )
        for place, metric in enumerate(metrics)
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {found[int(key)].name: share for key, share in shares.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if axis.categories is not None:
        return CategoricalDistribution(tuple(range(len(axis.categories))))
    return FloatDistribution(min(axis.known), max(axis.known), log=axis.log)


def _value(axis: Axis, index: int) -> float | int:
    place = axis.places[index]
    assert place is not None
    return place if axis.categories is None else int(place)


def _figure(shares: dict[str, float]) -> go.Figure:
    names = list(shares)
    figure = go.Figure(
        go.Bar(
            x=[shares[name] for name in reversed(names)],
            y=[f"{label(name, 40)}" for name in reversed(names)],
            orientation="h",
            marker={"color": "#3b7ab8"},
            text=[f"{shares[name]:.0%}" for name in reversed(names)],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.1%}<extra></extra>",
        )
    )
    height = 130 + 30 * len(names)
    figure.update_layout(
        layout(height=height, bargap=0.35, margin={"l": 64, "r": 40, "t": 40, "b": 48})
    )
    figure.update_layout(
        xaxis={"tickformat": ".0%", "rangemode": "tozero", "title": {"text": "share"}},
        yaxis={"type": "category", "ticks": "", "ticklabelstandoff": 8, "showgrid": False},
    )
    return figure
