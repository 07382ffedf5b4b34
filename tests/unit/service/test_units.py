"""The units of agents, and how a snapshot is laid out by them."""

from __future__ import annotations

from determined_service.base.units import AgentUnit, agent_of, names_of, units_of
from determined_service.scheduling.layout import UnitLayout
from determined_service.scheduling.snapshot import Constraint, Occupant, Part, Request

MACHINES = [(0, "n1"), (1, "n1"), (2, "n2"), (3, "n1"), (4, "n2")]


def test_each_machine_is_a_unit_and_a_plain_agent_is_one() -> None:
    assert units_of("k", MACHINES) == [AgentUnit("k/n1", (0, 1, 3)), AgentUnit("k/n2", (2, 4))]
    assert units_of("a", [(0, None), (1, None)]) == [AgentUnit("a", (0, 1))]
    assert units_of("a", []) == [AgentUnit("a", ())]


def test_a_limit_on_pods_cuts_machines_and_agents() -> None:
    assert units_of("k", MACHINES, 2) == [
        AgentUnit("k/n1#1", (0, 1)),
        AgentUnit("k/n1#2", (3,)),
        AgentUnit("k/n2", (2, 4)),
    ]
    assert units_of("k", [(one, None) for one in range(4)], 2) == [
        AgentUnit("k/#1", (0, 1)),
        AgentUnit("k/#2", (2, 3)),
    ]


def test_a_unit_is_meant_by_its_own_name_its_machines_and_its_agents() -> None:
    assert names_of("k/n1#2") == {"k", "k/n1", "k/n1#2"}
    assert names_of("k/#1") == {"k", "k/#1"}
    assert names_of("a#b") == {"a#b"}
    assert {agent_of(one) for one in ("k/n1#2", "k/#1", "k")} == {"k"}
    assert [
        Constraint(frozenset({name})).admits("k/n1#1", {}) for name in ("k", "k/n1", "k/n2")
    ] == [
        True,
        True,
        False,
    ]


def laid_out() -> UnitLayout:
    layout = UnitLayout()
    assert layout.add("a", [0], [], {}, None) == [AgentUnit("a", (0,))]
    machines = {str(slot): machine for slot, machine in MACHINES}
    # A unit keeps its place when one of its slots is closed.
    assert layout.add("k", [1, 2, 3, 4], [0], machines, None) == [
        AgentUnit("k/n1", (1, 3)),
        AgentUnit("k/n2", (2, 4)),
    ]
    return layout


def test_what_runs_is_counted_by_units() -> None:
    plain = Occupant("1", "a", (0,))
    gang = Occupant("2", "k", (0, 1), others=(Part("k", (2, 4)), Part("a", (0,))))
    found = laid_out().running([plain, gang])
    assert found[0] is plain
    assert found[1].parts == (Part("k/n1", (0, 1)), Part("k/n2", (2, 4)), Part("a", (0,)))


def test_slots_that_moved_to_another_machine_or_are_gone_are_counted_once() -> None:
    # Two nodes of a gang whose slots are of one machine now, and a slot that the agent no longer has.
    (one,) = laid_out().running(
        [Occupant("1", "k", (1,), others=(Part("k", (3, 4)), Part("k", (9,))))]
    )
    assert one.parts == (Part("k/n1", (1, 3, 9)), Part("k/n2", (4,)))


def test_allocations_without_slots_are_dealt_out() -> None:
    found = laid_out().running([Occupant(str(one), "k", ()) for one in range(3)])
    assert [one.agent_id for one in found] == ["k/n1", "k/n2", "k/n1"]


def test_an_agent_or_a_machine_is_excluded_with_its_units() -> None:
    requests = [
        Request("1", "p", 1),
        Request("2", "p", 1, excluded=frozenset({"a", "k/n2"})),
        Request("3", "p", 1, excluded=frozenset({"k"})),
    ]
    found = laid_out().requests(requests)
    assert [one.excluded for one in found] == [set(), {"a", "k/n2"}, {"k/n1", "k/n2"}]
