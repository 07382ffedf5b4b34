"""The slots of a pool, counted from the nodes of the cluster and the pods on them. Pure functions."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from determined.common.wire.agents import Device, Slot

Json: TypeAlias = dict[str, Any]

GPUS = {"cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}
"""The resource of a slot, by slot type."""
OF_NODE = "node.kubernetes.io/"
"""Taints with this prefix say that something is the matter with a node, for the time being."""
TURNS_AWAY = ("NoSchedule", "NoExecute")
ENDED = ("Succeeded", "Failed")

_QUANTITY = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")
_UNITS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** number for number, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** number for number, unit in enumerate("KMGTPE", 1)},
}


def quantity(text: object) -> Decimal:
    """A number as Kubernetes writes it, such as ``500m`` or ``4Gi``. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"expected a quantity of Kubernetes, such as 500m or 4Gi, found {text!r}")
    return Decimal(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True)
class Pool:
    """What is counted. ``per_slot``: the resources of one slot; ``ours``: label and value of our own pods."""

    slot_type: str
    per_slot: Mapping[str, Decimal]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]
    ours: tuple[str, str]


def requests(pod: Json) -> dict[str, str]:
    """What a pod takes of its node: a small object that stands for the pod where many are kept."""
    spec = pod.get("spec") or {}
    total: dict[str, Decimal] = defaultdict(Decimal)
    for one in spec.get("containers") or ():
        for name, amount in _asked(one).items():
            total[name] += amount
    for one in spec.get("initContainers") or ():
        for name, amount in _asked(one).items():
            total[name] = max(total[name], amount)
    for name, text in (spec.get("overhead") or {}).items():
        total[name] += quantity(text)
    return {name: str(amount) for name, amount in total.items()}


def _asked(container: Json) -> dict[str, Decimal]:
    given = container.get("resources") or {}
    # Without requests the limits count.
    both = {**(given.get("limits") or {}), **(given.get("requests") or {})}
    return {name: quantity(text) for name, text in both.items()}


def is_tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")):
            continue
        if one.get("key") not in (None, "", taint.get("key")):
            continue
        if one.get("operator") == "Exists" or (
            one.get("key") and (one.get("value") or "") == (taint.get("value") or "")
        ):
            return True
    return False


def is_ready(node: Json) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


class Numbers:
    """The ids of slots: the same ones as long as a node is there, and those that legs hold for ever."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = {}
        self._next = 0

    def hold(self, node: str, ids: Iterable[int]) -> None:
        """A leg that an agent before this one started has these."""
        known = self._of.setdefault(node, [])
        known += [one for one in ids if one not in known]
        self._next = max([self._next, *(one + 1 for one in known)])

    def take(self, node: str, count: int, busy: Collection[int]) -> list[int]:
        """The ids of a node with room for ``count`` slots, those that are ``busy`` first and all of them."""
        known = self._of.setdefault(node, [])
        while len(known) < count:
            known.append(self._next)
            self._next += 1
        held = [one for one in known if one in busy]
        free = [one for one in known if one not in busy]
        return sorted(held + free[: max(0, count - len(held))])


def count(
    nodes: Iterable[Json], pods: Iterable[Json], pool: Pool, numbers: Numbers, busy: Collection[int]
) -> list[Slot]:
    """The slots, by id. ``pods``: those of the whole cluster that have not ended, each with its
    :func:`requests` as ``requests``. ``busy``: slots of legs."""
    taken: dict[str, dict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        key, value = pool.ours
        if (pod["metadata"].get("labels") or {}).get(key) == value:
            continue
        for name, text in pod["requests"].items():
            taken[pod["node"]][name] += Decimal(text)
    found: list[Slot] = []
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        name, labels = str(node["metadata"]["name"]), node["metadata"].get("labels") or {}
        if any(labels.get(key) != value for key, value in pool.node_selector.items()):
            continue
        found += _of_node(node, name, taken[name], pool, numbers, busy)
    return sorted(found, key=lambda slot: slot.id)


def _of_node(
    node: Json,
    name: str,
    taken: Mapping[str, Decimal],
    pool: Pool,
    numbers: Numbers,
    busy: Collection[int],
) -> Iterable[Slot]:
    spec = node.get("spec") or {}
    turning = [
        taint
        for taint in spec.get("taints") or ()
        if taint.get("effect") in TURNS_AWAY and not is_tolerated(taint, pool.tolerations)
    ]
    passing = all(str(taint.get("key", "")).startswith(OF_NODE) for taint in turning)
    drains = bool(spec.get("unschedulable")) or not is_ready(node) or bool(turning)
    room = _room((node.get("status") or {}).get("allocatable") or {}, taken, pool)
    device = Device(pool.slot_type)
    # A node with a taint for others is no node of this pool, but its legs stay in view.
    for number in numbers.take(name, room if passing else 0, busy):
        yield Slot(number, device, draining=drains, machine=name)


def _room(allocatable: Json, taken: Mapping[str, Decimal], pool: Pool) -> int:
    fits = [
        math.floor((quantity(allocatable.get(name, 0)) - taken.get(name, Decimal(0))) / amount)
        for name, amount in pool.per_slot.items()
        if amount > 0
    ]
    return max(0, min(fits, default=0))
