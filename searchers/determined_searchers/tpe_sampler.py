"""One suggestion of Optuna's TPE sampler, computed from points alone, without a stored study."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Container, Iterator, Sequence
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import TPESampler
from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from determined_searchers.axes import Categorical, Integer, Leaf
from determined_searchers.coordinates import Point


def sample(
    axes: Sequence[Leaf],
    known: Sequence[tuple[Point, int | None]],
    seed: int,
    multivariate: bool,
) -> Point:
    """The point to try next; the same for the same arguments.

    Args:
        axes: the meaning of a point's numbers. known: points with their rank, 0 for the best, None for a
        point that is being tried. The oldest point comes first and counts the least. seed: the seed of the
        sampler's random numbers. multivariate: whether the axes are modelled together.
    """
    space = {leaf.path: _distribution(leaf) for leaf in axes}
    sampler = TPESampler(
        n_startup_trials=0, seed=seed, multivariate=multivariate, constant_liar=True
    )
    with _quiet():
        study = optuna.create_study(storage=_Recorded(_trials(space, known)), sampler=sampler)
        chosen = study.ask(space).params
    return tuple(chosen[leaf.path] for leaf in axes)


def _distribution(leaf: Any) -> BaseDistribution:
    if isinstance(leaf, Categorical):
        return CategoricalDistribution(range(len(leaf.vals)))
    if isinstance(leaf, Integer):
        return IntDistribution(leaf.minval, leaf.maxval)
    return FloatDistribution(leaf.minval, leaf.maxval)


def _trials(
    space: dict[str, BaseDistribution], known: Sequence[tuple[Point, int | None]]
) -> list[FrozenTrial]:
    """Trials with their rank as value, numbered from 1. Number 0 is the trial that is asked for."""
    return [
        FrozenTrial(
            number=number,
            trial_id=number,
            state=TrialState.RUNNING if rank is None else TrialState.COMPLETE,
            value=None if rank is None else float(rank),
            datetime_start=None,
            datetime_complete=None,
            params=dict(zip(space, point, strict=True)),
            distributions=space,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )
        for number, (point, rank) in enumerate(known, start=1)
    ]


class _Recorded(InMemoryStorage):
    """A storage that starts with trials. (Adding them one by one to a study costs ten times as much as the
    suggestion itself.)
    """

    def __init__(self, known: list[FrozenTrial]) -> None:
        super().__init__()
        self._known = known

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        found = [*super().get_all_trials(study_id, deepcopy, states), *self._known]
        return found if states is None else [trial for trial in found if trial.state in states]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Optuna's log line for each study and its warnings about experimental arguments."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
