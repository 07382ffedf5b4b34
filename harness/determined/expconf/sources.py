"""The layer from which each value of a complete configuration comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

WRITTEN, DEFAULT = "the configuration", "default"
"""Names of the layers that every experiment has: what its submitter wrote, and what the models fill in."""


@dataclass(frozen=True)
class Source:
    """A value of a complete configuration, and the name of the layer that it comes from."""

    path: str
    value: Any
    source: str


def sources(
    complete: Any, layers: Sequence[tuple[str, Any]], otherwise: str = DEFAULT
) -> Iterator[Source]:
    """The values of ``complete``, in its order.

    Args:
        layers: configurations in today's form, the upper one first, each with its name.
        otherwise: the name for values that no layer has.
    """
    yield from _below(complete, layers, "", otherwise)


def _below(
    value: Any, layers: Sequence[tuple[str, Any]], path: str, otherwise: str
) -> Iterator[Source]:
    """``layers``: those that have something at ``path``."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            # A layer in a shorter form of the field gives all that is below it.
            found = [
                (name, layer.get(key) if isinstance(layer, dict) else layer)
                for name, layer in layers
                if not isinstance(layer, dict) or layer.get(key) is not None
            ]
            yield from _below(inner, found, f"{path}.{key}" if path else str(key), otherwise)
        return
    names = [name for name, _ in layers]
    if isinstance(value, list) and len(names) > 1 and layers[0][1] != value:
        source = " and ".join(names)
    else:
        source = names[0] if names else otherwise
    yield Source(path, value, source)
