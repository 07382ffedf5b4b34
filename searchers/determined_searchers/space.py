"""The hyperparameter space: drawing a sample from it, and walking its grid."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from determined_searchers.axes import Categorical, Const, Double, Integer, Leaf, Log
from determined_searchers.errors import SearcherError
from determined_searchers.settings import nearest
from determined_searchers.stream import RandomStream

_TYPES: dict[str, type[Leaf]] = {
    "categorical": Categorical,
    "const": Const,
    "double": Double,
    "int": Integer,
    "log": Log,
}


class SpaceGroup:
    """Hyperparameters by name, always visited in byte order of the names, at every depth.

    (The original draws nested groups in the random order of a hash map; one order everywhere is
    what makes a seed mean the same search each time.)
    """

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        for name in config:
            if not isinstance(name, str):
                raise SearcherError(f"{path}: the name {name!r} is not a string")
        # Code point order of str is the byte order of its UTF-8.
        self.members = [(name, _parse(config[name], f"{path}.{name}")) for name in sorted(config)]

    def sample(self, stream: RandomStream) -> dict[str, Any]:
        return {name: node.sample(stream) for name, node in self.members}

    def leaves(self) -> Iterator[Leaf]:
        for _, node in self.members:
            if isinstance(node, SpaceGroup):
                yield from node.leaves()
            else:
                yield node

    def fill(self, values: Iterator[Any]) -> dict[str, Any]:
        """The group with one of ``values`` per leaf, in the order of :meth:`leaves`."""
        return {
            name: node.fill(values) if isinstance(node, SpaceGroup) else next(values)
            for name, node in self.members
        }

    def read(self, point: Mapping[str, Any]) -> Iterator[Any]:
        """The value of each leaf in ``point``, in the order of :meth:`leaves`."""
        for name, node in self.members:
            if isinstance(node, SpaceGroup):
                yield from node.read(point[name])
            else:
                yield point[name]


class Space:
    """All of ``config["hyperparameters"]``, checked."""

    def __init__(self, hyperparameters: Mapping[str, Any] | None) -> None:
        if not isinstance(hyperparameters or {}, Mapping):
            raise SearcherError(f"hyperparameters: expected a map, found {hyperparameters!r}")
        self._root = SpaceGroup(hyperparameters or {}, "hyperparameters")

    def sample(self, stream: RandomStream) -> dict[str, Any]:
        """One random point."""
        return self._root.sample(stream)

    def grid(self) -> Grid:
        """The grid. Raises SearcherError when a range has no ``count``."""
        return Grid(self._root)

    def leaves(self) -> list[Leaf]:
        """Every hyperparameter, at any depth, constants too, in the order in which they are drawn."""
        return list(self._root.leaves())

    def fill(self, values: Iterable[Any]) -> dict[str, Any]:
        """The point with one of ``values`` per leaf."""
        return self._root.fill(iter(values))

    def read(self, point: Mapping[str, Any]) -> list[Any]:
        """The inverse of :meth:`fill`."""
        return list(self._root.read(point))


class Grid:
    """The cartesian product of the leaves' axes, the first axis slowest; points made on demand.

    An empty space has one point, ``{}``, and so has an empty group inside it.
    """

    def __init__(self, root: SpaceGroup) -> None:
        self._root = root
        self._axes = [leaf.axis() for leaf in root.leaves()]
        self._length = math.prod(len(axis) for axis in self._axes)
        if self._length > sys.maxsize:
            raise SearcherError(
                f"hyperparameters: the grid has {self._length} points, which is more than any search can try"
            )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(index)
        chosen = []
        for axis in reversed(self._axes):
            index, place = divmod(index, len(axis))
            chosen.append(copy.deepcopy(axis[place]))
        return self._root.fill(reversed(chosen))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(self._length))


def _parse(value: Any, path: str) -> SpaceGroup | Leaf:
    if not isinstance(value, Mapping):
        return Const({"val": value}, path)
    if "type" not in value:
        return SpaceGroup(value, path)
    kind = _TYPES.get(value["type"]) if isinstance(value["type"], str) else None
    if kind is None:
        raise SearcherError(
            f"{path}.type: {value['type']!r} is not a type of hyperparameter"
            f"{nearest(value['type'], _TYPES)}; known are {', '.join(_TYPES)}"
        )
    return kind(value, path)
