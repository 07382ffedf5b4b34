"""The tasks: a configuration's learning curve, known in advance and the same for everyone.

An outcome depends on nothing but the task, its seed and the configuration: chance comes from a
keyed hash of the configuration's numbers. Losses lie near 0..1 (T5: in nats), smaller is better.
The seed also moves the landscape (T1, T2, T6: where the optimum is and how steep) or only the
noise and the costs (T3, T4); T5 is a recording, where it only moves the stream of configurations.
"""

from __future__ import annotations

import hashlib
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.search.offline.space import (
    COUNTING_SPACE,
    CURVES_SPACE,
    DIGITS_SPACE,
    HARTMANN_SPACE,
    Config,
    Param,
)

MAX_EPOCHS = 81
_EPOCHS = np.arange(1, MAX_EPOCHS + 1, dtype=float)


@dataclass(frozen=True)
class Outcome:
    """What training a configuration would give.

    Attributes:
        losses: as reported after epochs 1..81, with noise.
        regret: of the fully trained configuration, without noise; 0 is the best there is.
        epoch_cost: simulated time of one epoch; 1 on average.
        fails_at: the epoch in which training crashes, or None.
        invalid: training refuses the configuration at once.
    """

    losses: list[float]
    regret: float
    epoch_cost: float
    fails_at: int | None = None
    invalid: bool = False


class Task(ABC):
    """One instance of a task. ``worst``: the regret before anything was reported."""

    space: tuple[Param, ...]
    worst = 1.0

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self._key = f"{name}/{seed}".encode()

    @abstractmethod
    def outcome(self, config: Config) -> Outcome:
        """The outcome of ``config``: always the same one."""

    def chance(self, config: Config, purpose: str = "") -> np.random.Generator:
        """Random numbers that belong to ``config`` under this task and seed."""
        numbers = [float(config[param.name]) for param in self.space]
        packed = struct.pack(f"<{len(numbers)}d", *numbers)
        digest = hashlib.blake2b(packed + purpose.encode(), key=self._key, digest_size=16)
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "little")))

    def units(self, config: Config) -> np.ndarray:
        """``config`` as a point of the unit cube."""
        return np.array([param.unit(config[param.name]) for param in self.space])

    def stream(self) -> Iterator[Config]:
        """Configurations drawn uniformly: the same for every tool that samples at random."""
        chance = np.random.default_rng([self.seed, *self.name.encode()])
        while True:
            for point in chance.random((256, len(self.space))):
                yield {
                    param.name: param.at(float(u))
                    for param, u in zip(self.space, point, strict=True)
                }


def epoch_cost(chance: np.random.Generator) -> float:
    return math.exp(0.3 * chance.standard_normal())


class Curves(Task):
    """T1 and T2: power laws from the untrained loss 1 to ``final(x)``, plus noise of sd 0.01.

    ``final`` is 0.05 at one point of the cube and rises around it, to 0.9 in T1, where good
    configurations also learn faster, and to 0.5 in T2 (``crossing``), where they learn slower, so
    that early losses mislead: the best overtake the worst after about 5 epochs, middling ones
    after about 15.
    """

    space = CURVES_SPACE
    NOISE = 0.01
    BEST = 0.05

    def __init__(self, name: str, seed: int, crossing: bool) -> None:
        super().__init__(name, seed)
        self.crossing = crossing
        self.span = 0.45 if crossing else 0.85
        landscape = np.random.default_rng([1, seed])
        self.centre = landscape.uniform(0.2, 0.8, len(self.space))
        self.steepness = landscape.uniform(3, 9, len(self.space))

    def outcome(self, config: Config) -> Outcome:
        chance = self.chance(config)
        away = (self.units(config) - self.centre) * np.sqrt(self.steepness)
        # The first two parameters interact: a valley along the diagonal.
        quality = math.exp(-float(away @ away + away[0] * away[1]))
        luck = chance.random()
        if self.crossing:
            rate = 0.1 + 1.4 * (0.8 * (1 - quality) + 0.2 * luck)
        else:
            rate = 0.3 + 0.9 * (0.5 * quality + 0.5 * luck)
        left = (1 + _EPOCHS) ** -rate
        left = (left - left[-1]) / (1 - left[-1])  # 1 untrained, 0 at the last epoch
        final = self.BEST + self.span * (1 - quality)
        noise = self.NOISE * chance.standard_normal(MAX_EPOCHS)
        losses = final + (1 - final) * left + noise
        return Outcome(losses.tolist(), final - self.BEST, epoch_cost(chance))


class CountingOnes(Task):
    """T3: 8 bits and 8 shares, all to be 1; each epoch tosses nine more coins per share.

    The loss is the mean of 1 - bit and of the share of tails so far.
    """

    space = COUNTING_SPACE
    TOSSES = 9

    def outcome(self, config: Config) -> Outcome:
        chance = self.chance(config)
        values = np.array([config[param.name] for param in self.space])
        bits, shares = values[:8], np.clip(values[8:], 0, 1)
        heads = chance.binomial(self.TOSSES, shares, (MAX_EPOCHS, 8)).sum(axis=1).cumsum()
        losses = 1 - (bits.sum() + heads / (self.TOSSES * _EPOCHS)) / 16
        return Outcome(losses.tolist(), float(1 - values.sum() / 16), epoch_cost(chance))


class Hartmann(Task):
    """T4: Hartmann's six-dimensional function, seen through ``bias`` and ``noise`` that fade.

    At the share z of the training the four weights are lower by bias (1 - z), which moves the
    optimum, and the value has noise of sd noise (1 - z). Scaled: 1 for the value 0, 0 at the best.
    """

    space = HARTMANN_SPACE
    BEST = 3.322368011391339
    WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
    NARROWNESS = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    PEAKS = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )

    def __init__(self, name: str, seed: int, bias: float, noise: float) -> None:
        super().__init__(name, seed)
        self.bias = bias
        self.noise = noise

    def outcome(self, config: Config) -> Outcome:
        chance = self.chance(config)
        near = np.exp(-(self.NARROWNESS * (self.units(config) - self.PEAKS) ** 2).sum(axis=1))
        untrained = 1 - _EPOCHS / MAX_EPOCHS
        noise = self.noise * untrained * chance.standard_normal(MAX_EPOCHS)
        values = near @ self.WEIGHTS - self.bias * untrained * near.sum() + noise
        regret = 1 - float(near @ self.WEIGHTS) / self.BEST
        return Outcome((1 - values / self.BEST).tolist(), regret, epoch_cost(chance))


class Digits(Task):
    """T5: the nearest of 256 recorded trainings of a small network on scikit-learn's digits.

    The metric is the validation cross-entropy, the cost the recorded seconds over their mean.
    """

    space = DIGITS_SPACE
    _table: dict[str, np.ndarray] | None = None

    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, seed)
        if Digits._table is None:
            with np.load(Path(__file__).with_name("digits.npz")) as stored:
                Digits._table = {key: stored[key].astype(float) for key in stored.files}
        self.points = self._on_grid(Digits._table["points"])
        self.losses = Digits._table["losses"]
        self.costs = Digits._table["seconds"] / Digits._table["seconds"].mean()
        self.best = float(self.losses[:, -1].min())

    def _on_grid(self, points: np.ndarray) -> np.ndarray:
        """``points`` as :meth:`units` gives them: choices at their places."""
        return np.array(
            [
                [param.unit(param.at(u)) for param, u in zip(self.space, point, strict=True)]
                for point in points.tolist()
            ]
        )

    def outcome(self, config: Config) -> Outcome:
        nearest = int(((self.points - self.units(config)) ** 2).sum(axis=1).argmin())
        losses = self.losses[nearest].tolist()
        return Outcome(losses, losses[-1] - self.best, float(self.costs[nearest]))


class Faulty(Curves):
    """T6: T1 where 10 % of the configurations crash in a random epoch and 10 % are invalid."""

    def outcome(self, config: Config) -> Outcome:
        outcome = super().outcome(config)
        chance = self.chance(config, "faults")
        fate = chance.random()
        if fate < 0.1:
            return replace(outcome, fails_at=int(chance.integers(1, MAX_EPOCHS + 1)))
        return replace(outcome, invalid=fate < 0.2)


TASKS = {
    "T1 curves4": lambda name, seed: Curves(name, seed, crossing=False),
    "T2 crossing": lambda name, seed: Curves(name, seed, crossing=True),
    "T3 counting ones": CountingOnes,
    "T4 hartmann moderate": lambda name, seed: Hartmann(name, seed, bias=1.0, noise=0.2),
    "T4 hartmann bad": lambda name, seed: Hartmann(name, seed, bias=2.0, noise=0.4),
    "T5 digits": Digits,
    "T6 faulty": lambda name, seed: Faulty(name, seed, crossing=False),
}


def make_task(name: str, seed: int) -> Task:
    """The task called ``name``, instance ``seed``."""
    return TASKS[name](name, seed)


class Outcomes:
    """A task's outcomes, each computed once, and the stream of configurations, drawn as needed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._stream = task.stream()
        self._drawn: list[tuple[Config, Outcome]] = []

    def drawn(self, index: int) -> tuple[Config, Outcome]:
        """Number ``index`` of the stream."""
        while len(self._drawn) <= index:
            config = next(self._stream)
            self._drawn.append((config, self.task.outcome(config)))
        return self._drawn[index]
