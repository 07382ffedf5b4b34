"""The changes that population based training makes to hyperparameters copied from better trials."""

from __future__ import annotations

import math
from typing import Any

from determined_searchers.axes import Categorical, Integer, Leaf, Log
from determined_searchers.coordinates import Coordinates, Point, coordinate
from determined_searchers.stream import RandomStream


class Explorer:
    """Each hyperparameter that varies is drawn again with ``resample_probability``, otherwise perturbed:
    numbers times 1 + ``factor`` or 1 - ``factor``, within their range; categoricals to a neighbour in the
    list.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        stream: RandomStream,
        resample_probability: float,
        factor: float,
    ) -> None:
        self._coordinates = coordinates
        self._stream = stream
        self._resample_probability = resample_probability
        self._factor = factor

    def explore(self, point: Point) -> dict[str, Any]:
        """Hyperparameters near ``point``."""
        axes = zip(self._coordinates.axes, point, strict=True)
        return self._coordinates.hparams([self._change(leaf, number) for leaf, number in axes])

    def _change(self, leaf: Leaf, number: float) -> float:
        if self._stream.uniform(0, 1) < self._resample_probability:
            return coordinate(leaf, leaf.sample(self._stream))
        up = self._stream.below(2) == 1
        if isinstance(leaf, Categorical):
            last = len(leaf.vals) - 1
            # At an end of the list there is one neighbour only.
            up = number == 0 or (up and number < last)
            return number + (1 if up else -1)
        return perturb(leaf, number, 1 + self._factor if up else 1 - self._factor)


def perturb(leaf: Any, number: float, factor: float) -> float:
    """The coordinate of a number times ``factor``, within the range of ``leaf``.

    A whole number too small for ``factor`` to change moves by one.
    """
    if isinstance(leaf, Log):
        moved = number + math.log(factor) / math.log(leaf.base)
    elif isinstance(leaf, Integer):
        moved = round(number * factor)
        if moved == number:
            moved += 1 if factor > 1 else -1
    else:
        moved = number * factor
    return min(max(moved, leaf.minval), leaf.maxval)
