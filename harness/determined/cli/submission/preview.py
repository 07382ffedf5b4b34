"""The preview of a search: simulated here if the searchers are installed, else by the service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from itertools import groupby
from typing import Any

from determined.cli.errors import CliError
from determined.cli.output.render import Column, Record, Section
from determined.cli.state import State

ENTRY_POINTS = "determined.search_preview"

# The sections that a search depends on. The others are not sent: they may contain credentials.
_SECTIONS = ("searcher", "hyperparameters")


def preview(config: Mapping[str, Any], seed: int, shared: State, source: str) -> dict[str, Any]:
    """The trials of the search of a complete ``config``, with their lengths and rungs, as JSON.

    ``source`` names the file in errors. Raises CliError for a search that cannot be previewed, and
    APIException if the service is needed and does not answer.
    """
    needed = {name: config[name] for name in _SECTIONS}
    local = _installed()
    if local is None:
        return shared.cluster.preview_search(needed, seed)
    try:
        return dict(local(needed, seed).to_json())
    except Exception as error:
        searchers = sys.modules.get("determined_searchers.errors")
        if searchers is None or not isinstance(error, searchers.SearcherError):
            raise
        raise CliError(f"{source}: {error}") from error


def is_installed() -> bool:
    """Whether :func:`preview` works without a cluster."""
    return _installed() is not None


def _installed() -> Callable[[Mapping[str, Any], int], Any] | None:
    for point in metadata.entry_points(group=ENTRY_POINTS):
        found: Callable[[Mapping[str, Any], int], Any] = point.load()
        return found
    return None


def length(value: int | None, unit: str | None) -> str:
    """``1000 batches``."""
    if value is None:
        return "to completion"
    return f"{value} {unit}" if unit else str(value)


def tables(found: Mapping[str, Any]) -> list[Section]:
    """Two tables: the trials by their sequences of lengths, and the trials by their training time."""
    unit = found["unit"]

    def training_time(record: Record) -> str:
        value = record["length"]
        return f"train {'' if value is None else 'for '}{length(value, unit)}"

    times = Section(
        "",
        (Column("Trials", "trials"), Column("Training Time", training_time)),
        found["training_times"],
    )
    if not any(record["lengths"] for record in found["breakdown"]):
        return [times]
    breakdown = Section(
        "",
        (Column("Trials", "trials"), Column("Breakdown", lambda r: _sequence(r["lengths"]))),
        found["breakdown"],
    )
    return [breakdown, times]


def _sequence(lengths: Iterable[int]) -> str:
    """``1 x train for 62, 1 x train for 250``: the wording of older clients."""
    return ", ".join(f"{len(list(same))} x train for {value}" for value, same in groupby(lengths))
