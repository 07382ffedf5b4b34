"""Ports of tasks: no two get the same, and only the task's own server makes one ready."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys

import pytest

from determined.common.wire.legs import FREE_PORTS, LegSpec, Port, PortState
from determined_tasks import ports
from determined_tasks.containers import plan
from tests.waiting import TIMEOUT_S


def test_no_two_tasks_get_the_same_port_and_it_is_free_after_the_end() -> None:
    wanted = [Port("notebook", env="NOTEBOOK_PORT"), Port("tensorboard"), Port("own", port=8265)]
    first, second = ports.reserve(wanted), ports.reserve(wanted)
    numbers = [port.port for port in (*first.ports[:2], *second.ports[:2])]
    assert len(set(numbers)) == 4
    assert set(numbers) <= set(FREE_PORTS)
    assert first.ports[2].port == second.ports[2].port == 8265
    assert first.environment("0.0.0.0") == {
        "NOTEBOOK_PORT": str(numbers[0]),
        "DET_LISTEN_HOST": "0.0.0.0",
    }
    assert ports.reserve([]).environment("0.0.0.0") == {}
    held = ports._hold(numbers[0])
    assert held is None
    first.free()
    held = ports._hold(numbers[0])
    assert held is not None
    for one in [*held, *second.held]:
        one.close()


def test_only_the_first_node_of_a_gang_serves_ports() -> None:
    spec = LegSpec("a", "t", "x", "s", "c", ports=[Port("a")], nodes=2)
    assert [port.name for port in ports.ports_of(spec)] == ["a"]
    other = LegSpec("a", "t", "x", "s", "c", ports=[Port("a")], node=1, nodes=2)
    assert ports.ports_of(other) == []


def test_the_address_is_loopback_where_the_service_is_on_this_machine() -> None:
    assert ports.own_address("http://127.0.0.1:8080") == "127.0.0.1"
    assert ports.own_address("http://localhost:8080") == "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into Linux' /proc")
def test_a_port_is_ready_while_the_tasks_own_process_listens() -> None:
    said: queue.Queue[PortState] = queue.Queue()
    warned: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    number = listener.getsockname()[1]
    # Of somebody else: the task is another process.
    task = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def report(state: PortState) -> bool:
        said.put(state)
        return True

    pids = [task.pid]
    watch = ports.PortWatch(
        [Port("web", number)],
        "127.0.0.1",
        report,
        lambda text, level: warned.append(text),
        lambda: pids,
    )
    watch.start()
    try:
        found = said.get(timeout=TIMEOUT_S)
        assert not found.ready and "another process" in found.waits_for
        assert warned == [found.waits_for]
        pids[:] = [os.getpid()]
        assert said.get(timeout=TIMEOUT_S) == PortState("web", True)
        listener.close()
        assert said.get(timeout=TIMEOUT_S) == PortState(
            "web", False, f"nothing listens at port {number} yet"
        )
    finally:
        watch.end()
        task.communicate(b"\n")


def test_no_way_to_the_service_is_not_taken_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "WAY_PAUSES_S", (0.0,))
    with pytest.raises(OSError, match="no way to the service"):
        ports.own_address("http://nowhere.invalid:8080")


def test_the_address_of_a_container_with_a_separate_network() -> None:
    container = {"NetworkSettings": {"Networks": {"bridge": {"IPAddress": "172.17.0.2"}}}}
    assert plan.own_address(container) == "172.17.0.2"
