"""The class of each ``searcher.name``; a class is imported when it is first asked for."""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.method import SearchMethod
from determined_searchers.settings import nearest

BUILT_IN = {
    "single": "determined_searchers.random_search:SingleSearch",
    "random": "determined_searchers.random_search:RandomSearch",
    "grid": "determined_searchers.grid_search:GridSearch",
    "async_halving": "determined_searchers.async_halving:AsyncHalving",
    "adaptive_asha": "determined_searchers.adaptive_asha:AdaptiveASHA",
}
REMOVED = {
    "sync_halving": "async_halving",
    "adaptive": "adaptive_asha",
    "adaptive_simple": "adaptive_asha",
}
"""The names of earlier methods: what replaces each."""
ENTRY_POINTS = "determined.searchers"
"""Entry-point group in which packages offer methods; built-in names cannot be replaced."""


def find_method(name: Any) -> type[SearchMethod]:
    """The class of ``searcher.name``. Raises SearcherError for unknown names."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
    elif name in REMOVED:
        raise SearcherError(
            f"searcher.name: the {name!r} searcher has been removed and is not valid for new "
            f"experiments: use {REMOVED[name]}"
        )
    else:
        found = _import(_offered_as(name))
    if not (isinstance(found, type) and issubclass(found, SearchMethod)):
        raise SearcherError(f"searcher.name: {name!r} stands for {found!r}, not a SearchMethod")
    return found


def _offered_as(name: Any) -> EntryPoint:
    offered = _offered(tuple(sys.path))
    if name not in offered:
        known = [*BUILT_IN, *(other for other in offered if other not in BUILT_IN)]
        raise SearcherError(
            f"searcher.name: {name!r} is not a searcher{nearest(name, known)}; known are "
            f"{', '.join(known)}"
        )
    return offered[name]


@functools.cache
def _offered(_: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Reads the lists of all packages, which takes some 10 ms, so it is done once for each state of the
    search path.
    """
    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    return {point.name: point for point in points}


def _import(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # importing a foreign module may raise anything
        package = f"package {point.dist.name!r}" if point.dist else "an unknown package"
        raise SearcherError(
            f"searcher.name: the searcher {point.name!r} of {package} ({point.value}) cannot be "
            f"imported: {type(error).__name__}: {error}"
        ) from error
