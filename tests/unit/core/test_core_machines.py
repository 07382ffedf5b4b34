"""The launchers of a gang on two machines tell each other of their ends."""

import os
import select
import socket
import threading

import pytest

from determined.core._collective import Peer
from determined.launch._machines import Machines
from tests.waiting import TIMEOUT_S

ADDRESSES = ["10.0.0.1", "10.0.0.2"]


@pytest.fixture
def pair() -> tuple[Machines, Machines]:
    """The first machine and the other one, connected by TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    return Machines({1: Peer(ours, 1)}, ADDRESSES), Machines({0: Peer(theirs, 0)}, ADDRESSES)


def hear(machines: Machines) -> str | None:
    """The next message, as the launcher reads it."""
    (descriptor,) = machines.descriptors()
    ready, _, _ = select.select([descriptor], [], [], 10)
    assert ready
    return machines.hear(descriptor)


def test_the_first_machine_ends_last(pair: tuple[Machines, Machines]) -> None:
    first, other = pair
    assert (first.awaited, other.awaited) == (True, False)
    other.tell(None)
    assert hear(first) is None
    assert not first.awaited
    first.tell(None)
    other.close()
    first.close()


def test_the_first_machines_workers_end_before_the_others(pair: tuple[Machines, Machines]) -> None:
    first, other = pair
    first.tell(None)
    assert first.awaited
    assert hear(other) is None
    other.tell(None)
    closing = threading.Thread(target=other.close)
    closing.start()
    assert hear(first) is None
    assert not first.awaited
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()


def test_ends_that_cross_are_both_heard(pair: tuple[Machines, Machines]) -> None:
    first, other = pair
    # Neither has read the other's word when the other one closes.
    first.tell(None)
    other.tell(None)
    closing = threading.Thread(target=other.close)
    closing.start()
    assert hear(first) is None
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()


def test_the_first_machine_may_go_once_it_knows_of_the_others_end(
    pair: tuple[Machines, Machines],
) -> None:
    """The other one still reads its workers' last output."""
    first, other = pair
    other.tell(None)
    assert hear(first) is None
    first.tell(None)
    first.close()
    assert hear(other) is None


@pytest.mark.parametrize("why", ["rank 3 ended with exit code 1", None])
def test_a_failure_and_a_vanished_launcher(
    pair: tuple[Machines, Machines], why: str | None
) -> None:
    first, other = pair
    if why is not None:
        other.tell(why)
        assert hear(first) == why
    (descriptor,) = other.descriptors()
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)  # as the kernel does it
    assert hear(first) == "the launcher on 10.0.0.2 is gone"
