"""The plan of a submission: its trials by rung, the slots that they need, the resource pool."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from determined.cli.errors import CliError, talk
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.cli.state import State
from determined.cli.submission import pool, preview
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental._submission import Submission

_RUNGS = (
    Column("Bracket", "bracket"),
    Column("Rung", "rung"),
    Column("Train", "train"),
    Column("Trials", "trials"),
)

_ONE = {"batches": "batch", "records": "record", "epochs": "epoch"}


def make(config: dict[str, Any], planned: Submission, shared: State) -> dict[str, Any]:
    """The plan as JSON. ``config`` must be complete; nothing is submitted.

    ``search`` is the result of :func:`determined.cli.submission.preview.preview`; if there is none,
    ``search`` is None and ``note`` is the reason. Raises CliError for a search that cannot start.
    """
    resources = config["resources"]
    cluster = pool.ask(planned, resources, shared)
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
    """Prints the plan to stderr."""
    search, slots, peak = plan["search"], plan["slots_per_trial"], plan["peak_trials"]
    if search is None:
        talk(f"plan: {plan['note']}")
    else:
        talk(f"plan: {counted(search['trials'], 'trial')}{_total(search)}")
        if search["total_units"] is not None:
            render.show(_RUNGS, _rungs(search), render.Format.TABLE, file=sys.stderr)
        each = f"{counted(slots, 'slot')} each"
        talk(f"slots at peak: {plan['peak_slots']} ({counted(peak, 'trial')} at a time, {each})")
    talk(_takes(plan))


def _search(
    config: dict[str, Any], planned: Submission, cluster: dict[str, Any], shared: State
) -> tuple[dict[str, Any] | None, str | None]:
    """The preview and None, or None and the reason."""
    if config["searcher"]["name"] == "custom":
        return (
            None,
            "the trials are not known: the program that runs the custom search creates them",
        )
    asked = cluster["note"] is None
    if not asked and not preview.is_installed():
        return None, "the trials are not known without a cluster"
    try:
        return preview.preview(config, 0, shared, planned.config.document.source), None
    except CliError as error:
        # The cluster has accepted the search, so the search is only too large for a preview.
        if asked and cluster["refusal"] is None:
            return None, str(error)
        raise


def _at_peak(search: dict[str, Any] | None, resources: dict[str, Any]) -> int | None:
    """How many trials run at a time if there are enough slots."""
    if search is None:
        return None
    peak: int = search["peak_trials"]
    slots, most = resources["slots_per_trial"], resources.get("max_slots")
    return peak if most is None or not slots else min(peak, most // slots)


def _fits(at_peak: int | None, cluster: dict[str, Any]) -> bool | None:
    """Whether the pool has slots for all trials that run at a time; None if that is not known."""
    if cluster["note"] is not None or at_peak is None:
        return None
    at_once = cluster["trials_at_once"]
    return cluster["refusal"] is None and (at_once is None or bool(at_once >= at_peak))


def _length(value: int, unit: str) -> str:
    return counted(value, _ONE.get(unit, unit), unit)


def _total(search: dict[str, Any]) -> str:
    total = search["total_units"]
    if total is None:
        return ", each trained to completion"
    simulated = any(len(bracket["lengths"]) > 1 for bracket in search["rungs"])
    words = _length(total, search["unit"])
    return f", {'about ' if simulated else ''}{words} in all"


def _rungs(search: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for number, bracket in enumerate(search["rungs"], 1):
        for rung, length in enumerate(bracket["lengths"]):
            yield {
                "bracket": number,
                "rung": rung + 1,
                "train": _length(length, search["unit"]),
                "trials": bracket["trials"][rung],
            }


def _takes(plan: dict[str, Any]) -> str:
    """The resource pool of the plan, and how many of the trials fit at a time."""
    cluster, peak = plan["cluster"], plan["peak_trials"]
    begin = f"resource pool: {cluster['resource_pool'] or 'the default one'}"
    if cluster["note"] is not None:
        later = ": without --dry-run, a cluster is started on this machine"
        return f"{begin}; {cluster['note']}{later if cluster['started_when_run'] else ''}"
    begin += f" of the cluster at {cluster['master']}"
    begin += f", {counted(cluster['slots'], 'slot')}, {cluster['free_slots']} free"
    at_once = cluster["trials_at_once"]
    if at_once is None or peak is None:
        return begin
    if at_once == 0:
        return f"{begin}: no trial fits now"
    if at_once < peak:
        fit = "1 trial fits" if at_once == 1 else f"{at_once} trials fit"
        return f"{begin}: {fit} at a time, the others wait"
    return f"{begin}: enough for all trials that run at a time"
