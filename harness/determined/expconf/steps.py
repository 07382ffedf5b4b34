"""Converts the steps (groups of batches) of files from before Determined 0.13 to batches.

And the searchers that have been removed since: what replaces them, with the numbers of the file.
"""

import math
from typing import Any

from determined.expconf.paths import Path
from determined.expconf.problems import show

STEP = 100
"""Batches of a step, unless ``batches_per_step`` says otherwise."""
#: Fields of searchers that count steps: today's field in its place.
LENGTHS = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "max_length",
}
_PERIODS = ("min_validation_period", "min_checkpoint_period")


def successor(path: Path, config: dict[str, Any]) -> tuple[str, str] | None:
    """For a field that counts steps: today's field, and what to write."""
    searcher = _section(config, "searcher")
    if path == ("batches_per_step",):
        return "scheduling_unit", (
            f"steps are gone, everything is counted in batches: write scheduling_unit: "
            f"{show(config[path[0]])}, and multiply what counts steps by it"
        )
    if len(path) != 2 or path[0] != "searcher" or path[1] not in LENGTHS:
        return None
    field, name = LENGTHS[str(path[1])], str(path[1])
    if field == "budget":
        return field, "steps are gone, and a search is limited by max_trials, not by a budget"
    found = _whole(searcher.get(name))
    rounds = _whole(searcher.get("num_rounds")) if name == "steps_per_round" else 1
    if found is None or rounds is None:
        return field, f"steps are gone: write {field}: {{batches: n}}"
    each = _per_step(config)
    counted = f"{found} steps of {each} batches" + (f", {rounds} rounds" if rounds != 1 else "")
    return field, f"steps are gone: write {field}: {{batches: {found * rounds * each}}} ({counted})"


def period(path: Path, value: Any, config: dict[str, Any]) -> str | None:
    """For a bare number in a file that counts steps: what to write instead."""
    old = "batches_per_step" in config or not LENGTHS.keys().isdisjoint(
        _section(config, "searcher")
    )
    if not old or len(path) != 1 or path[0] not in _PERIODS or _whole(value) is None:
        return None
    each = _per_step(config)
    return f"steps are gone: write {path[0]}: {{batches: {value * each}}} ({value} steps of {each} batches)"


def instead_of(name: str, config: dict[str, Any]) -> str:
    """The searcher to write in place of a removed one, with the number of trials that its budget would have
    paid for."""
    searcher = _section(config, "searcher")
    fields = ["name: async_halving" if name == "sync_halving" else "name: adaptive_asha"]
    length = _length(searcher, "max_length", config)
    if length is not None:
        fields.append(f"max_length: {{{length[0]}: {length[1]}}}")
    trials = searcher.get("max_trials")
    if name != "adaptive_simple":
        budget = _length(searcher, "budget", config)
        trials = None
        if budget is not None and length is not None and budget[0] == length[0]:
            trials = _trials(searcher, budget[1], length[1], name)
    fields.append(f"max_trials: {'n' if _whole(trials) is None else trials}")
    rest = [
        field
        for field in ("num_rungs", "mode", "divisor", "max_rungs", "bracket_rungs")
        if searcher.get(field) is not None
    ]
    kept = f"; keep {', '.join(rest)}" if rest else ""
    gone = "" if name == "adaptive_simple" else "; leave budget and train_stragglers out"
    return f"write {', '.join(fields)}{kept}{gone}"


def _trials(searcher: dict[str, Any], budget: int, length: int, name: str) -> int | None:
    """The number of trials of successive halving that cost the budget, if halvings of each number of rungs
    share it equally."""
    divisor = searcher.get("divisor", 4)
    if type(divisor) not in (int, float) or not 1 < divisor < math.inf:
        return None
    most = _whole(searcher.get("num_rungs" if name == "sync_halving" else "max_rungs", 5))
    if most is None:
        return None
    ladders = [most]
    if name == "adaptive":
        most = min(most, int(math.log(length) / math.log(divisor)) + 1)
        mode = searcher.get("mode", "standard")
        least = {"aggressive": most, "standard": (most - 1) // 2 + 1}.get(str(mode), 1)
        given = searcher.get("bracket_rungs")
        ladders = given if isinstance(given, list) and given else list(range(least, most + 1))
        if not all(_whole(rungs) for rungs in ladders):
            return None
    found = 0
    for rungs in ladders:
        try:
            lowest = length / float(divisor) ** (rungs - 1)
        except OverflowError:
            return None
        # Each rung after the lowest goes on with 1/divisor of the trials, divisor times as far.
        of_trial = lowest * (1 + (rungs - 1) * (1 - 1 / divisor))
        found += max(1, round(budget / len(ladders) / max(of_trial, 1)))
    return found


def _length(searcher: dict[str, Any], field: str, config: dict[str, Any]) -> tuple[str, int] | None:
    """The unit and the number of a length, which may be given in steps."""
    given = searcher.get(field)
    if isinstance(given, dict) and len(given) == 1:
        ((unit, number),) = given.items()
        return None if _whole(number) is None else (str(unit), number)
    for name, today in LENGTHS.items():
        number = _whole(searcher.get(name))
        if today == field and number is not None:
            return "batches", number * _per_step(config)
    return None


def _per_step(config: dict[str, Any]) -> int:
    return _whole(config.get("batches_per_step")) or STEP


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 2**53 else None


def _section(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
