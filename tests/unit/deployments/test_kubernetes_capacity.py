"""The slots of a pool are counted from nodes and pods, and keep their numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from determined.common.wire.agents import Device, Slot
from determined_deployments.agent.launchers.kubernetes import capacity
from determined_deployments.agent.launchers.kubernetes.capacity import Numbers, Pool

OURS = ("determined-prefect.io/agent", "a1")


def pool(**more: Any) -> Pool:
    given: dict[str, Any] = {
        "slot_type": "cuda",
        "per_slot": {"nvidia.com/gpu": Decimal(1)},
        "node_selector": {},
        "tolerations": (),
        "ours": OURS,
    }
    return Pool(**{**given, **more})


def node(name: str, gpus: int = 2, ready: bool = True, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "3920m", "memory": "15Gi", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def pod(on: str, ours: bool = False, **asked: str) -> dict[str, Any]:
    labels = dict([OURS]) if ours else {}
    return {"metadata": {"labels": labels}, "node": on, "requests": asked}


def count(
    *nodes: dict[str, Any],
    pods: list[dict[str, Any]] | None = None,
    numbers: Numbers | None = None,
    busy: set[int] | None = None,
    of: Pool | None = None,
) -> list[Slot]:
    return capacity.count(nodes, pods or [], of or pool(), numbers or Numbers(), busy or set())


def shown(slots: list[Slot]) -> list[tuple[int, str | None, bool]]:
    return [(slot.id, slot.machine, slot.draining) for slot in slots]


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", "2"), ("500m", "0.5"), ("4Gi", str(4 << 30)), ("1.5k", "1500"), ("1e3", "1000")],
)
def test_quantities(text: str, number: str) -> None:
    assert capacity.quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "4 Gi", "4gb", "-1x", "Gi"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        capacity.quantity(text)


def test_slots_are_gpus_of_nodes_by_name() -> None:
    found = count(node("b", 1), node("a", 2))
    assert shown(found) == [(0, "a", False), (1, "a", False), (2, "b", False)]
    assert found[0].device == Device("cuda")


def test_others_pods_take_slots_and_ours_do_not() -> None:
    pods = [pod("a", **{"nvidia.com/gpu": "1"}), pod("b", ours=True, **{"nvidia.com/gpu": "2"})]
    assert shown(count(node("a"), node("b"), pods=pods)) == [
        (0, "a", False),
        (1, "b", False),
        (2, "b", False),
    ]


def test_the_scarcest_resource_decides() -> None:
    small = pool(slot_type="cpu", per_slot={"cpu": Decimal(1), "memory": Decimal(8 << 30)})
    assert len(count(node("a"), of=small)) == 1
    assert len(count(node("a"), of=pool(per_slot={"cpu": Decimal(1)}))) == 3
    assert (
        count(node("a"), of=small, pods=[pod("a", memory="8Gi".replace("Gi", "000000000"))]) == []
    )


def test_what_a_pod_takes_is_its_containers_or_its_largest_init_container() -> None:
    def container(**asked: str) -> dict[str, Any]:
        return {"resources": {"requests": asked}}

    spec = {
        "containers": [container(cpu="500m"), {"resources": {"limits": {"cpu": "1"}}}],
        "initContainers": [container(cpu="2"), container(memory="1Gi")],
        "overhead": {"cpu": "100m"},
    }
    found = capacity.requests({"spec": spec})
    assert {name: Decimal(text) for name, text in found.items()} == {
        "cpu": Decimal("2.1"),
        "memory": Decimal(1 << 30),
    }


def test_nodes_of_other_pools_do_not_count() -> None:
    chosen = pool(node_selector={"pool": "gpu"})
    nodes = [node("a", labels={"pool": "gpu"}), node("b", labels={"pool": "web"}), node("c")]
    assert {slot.machine for slot in count(*nodes, of=chosen)} == {"a"}


def test_a_node_that_is_cordoned_or_silent_drains() -> None:
    cordoned = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    found = count(
        node("a", 1, unschedulable=True, taints=cordoned), node("b", 1, ready=False), node("c", 1)
    )
    assert shown(found) == [(0, "a", True), (1, "b", True), (2, "c", False)]


@pytest.mark.parametrize(
    ("toleration", "counts"),
    [
        ({}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_a_node_with_a_taint_is_the_pools_if_its_pods_tolerate_it(
    toleration: dict[str, str], counts: bool
) -> None:
    tainted = node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    found = count(tainted, of=pool(tolerations=(toleration,) if toleration else ()))
    assert bool(found) is counts
    assert not any(slot.draining for slot in found)


def test_numbers_stay_when_nodes_come_and_go() -> None:
    numbers = Numbers()
    first = shown(count(node("b"), node("c"), numbers=numbers))
    assert shown(count(node("a"), node("b"), node("c"), numbers=numbers)) == [
        *first,
        (4, "a", False),
        (5, "a", False),
    ]
    assert [one[0] for one in shown(count(node("c"), numbers=numbers))] == [2, 3]
    assert shown(count(node("b"), node("c"), numbers=numbers)) == first, "it came back"


def test_numbers_of_legs_are_kept_by_the_next_agent() -> None:
    numbers = Numbers()
    numbers.hold("b", [7])
    found = shown(count(node("a", 1), node("b", 2), numbers=numbers, busy={7}))
    assert (7, "b", False) in found
    assert len({number for number, *_ in found}) == 3


def test_a_slot_with_a_leg_stays_when_others_take_the_rest() -> None:
    numbers = Numbers()
    count(node("a", 2), numbers=numbers)
    pods = [pod("a", **{"nvidia.com/gpu": "1"}), pod("a", ours=True, **{"nvidia.com/gpu": "1"})]
    assert shown(count(node("a", 2), pods=pods, numbers=numbers, busy={1})) == [(1, "a", False)]
    # A node that turns others away now keeps what runs on it, in view and draining.
    tainted = node("a", 2, taints=[{"key": "x", "effect": "NoSchedule"}])
    assert shown(count(tainted, numbers=numbers, busy={1})) == [(1, "a", True)]
