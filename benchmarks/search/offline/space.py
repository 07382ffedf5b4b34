"""Search spaces as every tool can read them: named parameters, each mapped from the unit interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

Config = dict[str, float]


@dataclass(frozen=True)
class Param:
    """One hyperparameter.

    ``kind``: "float" (uniform in low..high), "log" (uniform in the logarithm) or "choice" (of the
    numbers in ``choices``).
    """

    name: str
    kind: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[float, ...] = ()

    def at(self, u: float) -> float:
        """The value at ``u`` in [0, 1)."""
        if self.kind == "choice":
            return self.choices[int(u * len(self.choices))]
        if self.kind == "log":
            return math.exp(math.log(self.low) + u * math.log(self.high / self.low))
        return self.low + u * (self.high - self.low)

    def unit(self, value: float) -> float:
        """Where ``value`` lies in [0, 1]; choices at equal distances."""
        if self.kind == "choice":
            return self.choices.index(value) / (len(self.choices) - 1)
        if self.kind == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


CURVES_SPACE = (
    Param("learning_rate", "log", 1e-5, 1.0),
    Param("weight_decay", "log", 1e-6, 1e-1),
    Param("dropout", "float", 0.0, 0.8),
    Param("momentum", "float", 0.0, 1.0),
)
COUNTING_SPACE = (
    *(Param(f"bit{i}", "choice", choices=(0.0, 1.0)) for i in range(8)),
    *(Param(f"share{i}", "float") for i in range(8)),
)
HARTMANN_SPACE = tuple(Param(f"x{i}", "float") for i in range(6))
DIGITS_SPACE = (
    Param("learning_rate", "log", 1e-4, 1.0),
    Param("hidden", "log", 8.0, 128.0),
    Param("batch", "choice", choices=(32.0, 64.0, 128.0, 256.0, 512.0)),
    Param("momentum", "float", 0.0, 0.99),
)
