"""Which class a ``searcher.name`` stands for; none is imported before it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from determined_searchers.errors import SearcherError
from determined_searchers.method import SearchMethod
from determined_searchers.settings import nearest

BUILT_IN = {
    "single": "determined_searchers.random_search:SingleSearch",
    "random": "determined_searchers.random_search:RandomSearch",
    "grid": "determined_searchers.grid_search:GridSearch",
    "async_halving": "determined_searchers.asha:Halving",
    "adaptive_asha": "determined_searchers.adaptive_asha:AdaptiveASHA",
}
REMOVED = ("sync_halving", "adaptive", "adaptive_simple")
ENTRY_POINTS = "determined.searchers"
"""Entry-point group in which other packages offer methods; built-in names cannot be replaced."""


def find_method(name: Any) -> type[SearchMethod]:
    """The class behind ``searcher.name``. Raises SearcherError for names that have none."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        found = getattr(import_module(module), attribute)
    elif name in REMOVED:
        raise SearcherError(
            f"searcher.name: the {name!r} searcher has been removed and is not valid for new "
            f"experiments"
        )
    else:
        offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if name not in offered:
            known = sorted({*BUILT_IN, *offered})
            raise SearcherError(
                f"searcher.name: {name!r} is not a searcher{nearest(name, known)}; known are "
                f"{', '.join(known)}"
            )
        found = offered[name].load()
    if not (isinstance(found, type) and issubclass(found, SearchMethod)):
        raise SearcherError(f"searcher.name: {name!r} stands for {found!r}, not a SearchMethod")
    return found
