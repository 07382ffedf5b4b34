"""Config policies: what workspaces and the cluster prescribe for configurations, and how it is held to.

A policy's ``invariant_config`` wins over what users set, its ``constraints`` refuse what asks for too much.
The global policy stands above that of a workspace; of two limits the stricter one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from determined.expconf import legacy, masking, merging, paths
from determined.expconf.problems import show
from determined.expconf.tasks import merged_above
from determined_service.base.errors import BadRequest
from determined_service.base.policy import TASKS, ConfigPolicy, Held


def above(held: Held) -> dict[str, Any]:
    """The values that win, in today's form."""
    merged: dict[str, Any] = {}
    for policy in reversed(held):
        merged = _over(policy, merged)
    return merged


def _over(policy: ConfigPolicy, given: Mapping[str, Any]) -> dict[str, Any]:
    if policy.workload == TASKS:
        return merged_above(policy.invariant, given)
    return merging.overlaid(legacy.shim(policy.invariant), legacy.shim(given))


def overridden(held: Held, given: Mapping[str, Any]) -> list[str]:
    """Remarks on the values of ``given`` (a user's, over those of its template) that do not count."""
    before = _over(ConfigPolicy(held[0].workload, None, b"{}"), given) if held else {}
    after, said, remarks = before, set[paths.Path](), []
    for policy in reversed(held):
        after = _over(policy, after)
    for policy in held:
        for path, old, new in _changed(policy.invariant, before, after, ()):
            if path in said:
                continue
            said.add(path)
            plain = not isinstance(old, dict | list) and not isinstance(new, dict | list)
            if plain and not masking.is_secret(path, new):
                what = f"is {show(new)}, not {show(old)}"
            else:
                what = "is not as it was given"
            remarks.append(f"{paths.render(path)} {what}: {policy.whose} says so")
    return remarks


def _changed(
    invariant: Mapping[str, Any], before: Any, after: Any, path: paths.Path
) -> Iterator[tuple[paths.Path, Any, Any]]:
    for key, value in invariant.items():
        if not isinstance(before, dict) or not isinstance(after, dict) or key not in before:
            continue
        old, new, here = before[key], after.get(key), (*path, key)
        if old == new:
            continue
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(new, dict):
            yield from _changed(value, old, new, here)
        else:
            yield here, old, new


def explained(held: Held, problems: str) -> str:
    """Problems of a configuration, and the policies whose values may be the reason."""
    setting = [policy.whose for policy in held if policy.invariant]
    if not setting:
        return problems
    return f"{problems}\n(some values are those of {' and '.join(setting)}: {held[0].advice})"


def limit_slots(held: Held, resources: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The ``resources`` of a complete configuration, within the limits, and remarks.

    Raises BadRequest for a configuration that asks for more.
    """
    found = dict(resources)
    strict = _strictest(held)
    if strict is None:
        return found, []
    most, policy = strict
    of_tasks = policy.workload == TASKS
    field_name = "slots" if of_tasks else "slots_per_trial"
    wanted = found.get(field_name)
    _require_slots(1 if wanted is None else wanted, most, policy, f"resources.{field_name}")
    if of_tasks:
        return found, []
    if found.get("max_slots") is not None:
        _require_slots(found["max_slots"], most, policy, "resources.max_slots")
        return found, []
    found["max_slots"] = most
    return found, [f"resources.max_slots is {most}: {policy.whose} allows no more"]


def _strictest(held: Held) -> tuple[int, ConfigPolicy] | None:
    limits = [(one.max_slots, one) for one in held if one.max_slots is not None]
    return min(limits, key=lambda limit: limit[0]) if limits else None


def _require_slots(wanted: int, most: int, policy: ConfigPolicy, where: str) -> None:
    if wanted > most:
        raise BadRequest(
            f"{where}: {wanted} found, at most {most} are allowed: {policy.whose} says so in "
            f"constraints.resources.max_slots ({policy.advice})"
        )


@dataclass(frozen=True, slots=True)
class PriorityOrder:
    """How a resource pool reads priorities. ``default``: of what sets none; None: the pool heeds none."""

    pool: str
    higher_first: bool
    default: int | None


def limit_priority(
    held: Held, priority: int | None, order: PriorityOrder, where: str
) -> tuple[int | None, list[str]]:
    """The priority within the limits, and remarks: what sets none gets the limit if the pool's default is
    more important. ``where``: its path. Raises BadRequest for one that is more important.
    """
    limits = [(one.priority_limit, one) for one in held if one.priority_limit is not None]
    if not limits:
        return priority, []
    sign = 1 if order.higher_first else -1
    limit, policy = min(limits, key=lambda one: sign * one[0])
    found = order.default if priority is None else priority
    if found is None or sign * found <= sign * limit:
        return priority, []
    if priority is None:
        remark = (
            f"{where} is {limit}, not {found}, the default of resource pool {order.pool!r}: {policy.whose} "
            "allows no more important one"
        )
        return limit, [remark]
    which = "higher" if order.higher_first else "lower"
    raise BadRequest(
        f"{where}: {priority} is more important than {limit}, the priority_limit of {policy.whose} (in "
        f"resource pool {order.pool!r} a {which} number is more important; {policy.advice})"
    )


def require_change(held: Held, values: Mapping[str, Any]) -> None:
    """Raises BadRequest if ``values``, of ``resources``, are changed to what the policies do not allow.
    Priorities: :func:`limit_priority`."""
    for policy in held:
        fixed = policy.invariant.get("resources") or {}
        for name, value in values.items():
            if fixed.get(name) is not None and fixed[name] != value:
                raise BadRequest(
                    f"{name}: it is {show(fixed[name])} and cannot be {show(value)}: {policy.whose} says so "
                    f"({policy.advice})"
                )
    strict = _strictest(held)
    if strict is None or "max_slots" not in values:
        return
    most, policy = strict
    if values["max_slots"] is None:
        raise BadRequest(
            f"max_slots: it cannot be taken away: {policy.whose} allows at most {most} ({policy.advice})"
        )
    _require_slots(values["max_slots"], most, policy, "max_slots")
