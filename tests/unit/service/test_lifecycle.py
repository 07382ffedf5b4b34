"""The transition tables."""

from __future__ import annotations

import pytest

from determined_service.state import states
from determined_service.state.states import ALLOCATION, EXPERIMENT, TRIAL, Machine

MACHINES = [EXPERIMENT, TRIAL, ALLOCATION]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.noun)
def test_every_state_leads_to_an_end_and_no_further(machine: Machine) -> None:
    ends = {"TERMINATED"} if machine is ALLOCATION else states.TERMINAL
    # An experiment that has ended can only be deleted; that may fail, and be tried again.
    out = states.DELETION if machine is EXPERIMENT else frozenset[str]()
    for state in {*ends, *out}:
        assert machine.moves[state] <= out
    for state in machine.moves.keys() - out:
        reached = {state}
        while True:
            more = reached | {new for old in reached for new in machine.moves[old]}
            if more == reached:
                break
            reached = more
        assert reached & ends


@pytest.mark.parametrize("machine", [EXPERIMENT, TRIAL], ids=lambda machine: machine.noun)
def test_a_stop_only_gets_harder(machine: Machine) -> None:
    order = [states.STOPPING_COMPLETED, states.STOPPING_CANCELED, states.STOPPING_KILLED]
    for place, softer in enumerate(order):
        for harder in order[place + 1 :]:
            assert machine.allows(softer, harder)
            assert not machine.allows(harder, softer)
        for runnable in states.RUNNABLE:
            assert machine.allows(runnable, softer)
            assert not machine.allows(softer, runnable)


def test_an_experiment_ends_as_its_stop_says() -> None:
    for stopping, outcome in states.OUTCOME.items():
        ends = {state for state in states.TERMINAL if EXPERIMENT.allows(stopping, state)}
        assert ends == {outcome}


def test_an_allocation_never_goes_back() -> None:
    order = [states.REQUESTED, states.ASSIGNED, states.RUNNING, states.TERMINATED]
    for place, state in enumerate(order):
        assert not any(ALLOCATION.allows(state, earlier) for earlier in order[: place + 1])
    assert not ALLOCATION.allows(states.REQUESTED, states.RUNNING)
    assert sorted(ALLOCATION.sources(states.TERMINATED)) == sorted(order[:3])
