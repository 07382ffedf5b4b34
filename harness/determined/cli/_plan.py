"""What a submission would become: its trials by rung, the slots they need, the pool that has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from determined.cli import _pool, _preview, _render
from determined.cli._errors import CliError, talk
from determined.cli._render import Column
from determined.cli._state import State

if TYPE_CHECKING:
    from determined.experimental._submission import Submission

_RUNGS = (
    Column("Bracket", "bracket"),
    Column("Rung", "rung"),
    Column("Train", "train"),
    Column("Trials", "trials"),
)


def make(config: dict[str, Any], planned: Submission, shared: State) -> dict[str, Any]:
    """The plan as JSON. ``config`` is complete; nothing is submitted.

    ``search`` is what :func:`determined.cli._preview.preview` says; None where that is not known, and
    ``note`` says why. Raises CliError for a search that cannot begin.
    """
    resources = config["resources"]
    cluster = _pool.ask(planned, resources, shared)
    search, note = _search(config, planned, cluster, shared)
    slots = resources["slots_per_trial"]
    at_peak = _at_peak(search, resources)
    return {
        "search": search,
        "note": note,
        "slots_per_trial": slots,
        "peak_trials": at_peak,
        "peak_slots": None if at_peak is None else at_peak * slots,
        "fits": _fits(at_peak, cluster),
        "cluster": cluster,
    }


def show(plan: dict[str, Any]) -> None:
    """The plan in words, to stderr."""
    search, slots, peak = plan["search"], plan["slots_per_trial"], plan["peak_trials"]
    if search is None:
        talk(f"plan: {plan['note']}")
    else:
        talk(f"plan: {search['trials']} trials{_total(search)}")
        if search["total_units"] is not None:
            _render.show(_RUNGS, _rungs(search), _render.Format.TABLE, file=sys.stderr)
        each = f"{slots} slot{'' if slots == 1 else 's'} each"
        talk(f"slots at peak: {plan['peak_slots']} ({peak} trials at a time, {each})")
    talk(_takes(plan))


def _search(
    config: dict[str, Any], planned: Submission, cluster: dict[str, Any], shared: State
) -> tuple[dict[str, Any] | None, str | None]:
    """The preview, or why there is none."""
    if config["searcher"]["name"] == "custom":
        return None, "which trials there will be is up to the program that runs the search"
    asked = cluster["note"] is None
    if not asked and not _preview.is_installed():
        return None, "which trials there will be is not known without a cluster"
    try:
        return _preview.preview(config, 0, shared, planned.config.document.source), None
    except CliError as error:
        # The cluster has tried how the search begins: what it takes is merely too large to show.
        if asked and cluster["refusal"] is None:
            return None, str(error)
        raise


def _at_peak(search: dict[str, Any] | None, resources: dict[str, Any]) -> int | None:
    """How many trials run at a time, given slots enough."""
    if search is None:
        return None
    peak: int = search["peak_trials"]
    slots, most = resources["slots_per_trial"], resources.get("max_slots")
    return peak if most is None or not slots else min(peak, most // slots)


def _fits(at_peak: int | None, cluster: dict[str, Any]) -> bool | None:
    """Whether the pool has room for all that train at a time; None: not known."""
    if cluster["note"] is not None or at_peak is None:
        return None
    at_once = cluster["trials_at_once"]
    return cluster["refusal"] is None and (at_once is None or bool(at_once >= at_peak))


def _total(search: dict[str, Any]) -> str:
    total = search["total_units"]
    if total is None:
        return ", each trained to completion"
    simulated = any(len(bracket["lengths"]) > 1 for bracket in search["rungs"])
    words = _preview.length(total, search["unit"])
    return f", {'about ' if simulated else ''}{words} in all"


def _rungs(search: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, bracket in enumerate(search["rungs"], 1):
        for rung, length in enumerate(bracket["lengths"]):
            yield {
                "bracket": number,
                "rung": rung + 1,
                "train": _preview.length(length, search["unit"]),
                "trials": bracket["trials"][rung],
            }


def _takes(plan: dict[str, Any]) -> str:
    """The pool that will take it, and how much of it at a time."""
    cluster, peak = plan["cluster"], plan["peak_trials"]
    begin = f"resource pool: {cluster['resource_pool'] or 'the default one'}"
    if cluster["note"] is not None:
        later = ": one is started on this machine when it is run"
        return f"{begin}; {cluster['note']}{later if cluster['started_when_run'] else ''}"
    begin += f" of the cluster at {cluster['master']}"
    begin += f", {cluster['slots']} slots, {cluster['free_slots']} free"
    at_once = cluster["trials_at_once"]
    if at_once is None or peak is None:
        return begin
    if at_once == 0:
        return f"{begin}: no trial fits now"
    if at_once < peak:
        return f"{begin}: {at_once} trials at a time, the others wait"
    return f"{begin}: room for all that train at a time"
