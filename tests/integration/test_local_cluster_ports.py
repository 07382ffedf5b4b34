"""Ports that somebody else takes between the choice and the start, as two clusters that start at the
same moment do to each other; and strangers that answer in a component's place."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from determined_deployments.local import (
    ComponentFailed,
    cluster_down,
    cluster_status,
    cluster_up,
    daemon,
    ports,
    postgres,
    probe,
    up,
)
from determined_deployments.local import state as states
from determined_deployments.local.component import Component
from determined_deployments.local.layout import Layout
from determined_deployments.local.prefect_server import MODULE as PREFECT
from determined_deployments.local.report import Silent
from tests.integration.local_layout import Notes, marker, plain_layout

LISTEN = "import socket,sys,time; s=socket.create_server(('127.0.0.1', int(sys.argv[1])));"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[Layout]:
    with plain_layout(tmp_path, postgres_port=1) as made:
        yield made


def pid(layout: Layout, name: str) -> int:
    process = daemon.running(layout, name)
    assert process is not None
    return process.pid


def free_port() -> int:
    with ports.Claims() as claims:
        return ports.pick(None, claims)


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def server(layout: Layout, name: str, port: int, code: str = LISTEN) -> Component:
    """Listens on ``port``, or ends with a status of 1 when it cannot."""

    def is_ready() -> bool:
        process = daemon.running(layout, name)
        return process is not None and ports.listener(port, process) == "itself"

    return Component(
        name=name,
        argv=(sys.executable, "-c", f"{code} time.sleep(600)", str(port)),
        is_ready=is_ready,
        url="",
        port=port,
    )


def knower(name: str, port: int) -> Component:
    """Ready at once; gets a port."""
    return Component(
        name=name,
        argv=(sys.executable, "-c", SLEEP),
        is_ready=lambda: True,
        url="",
        env={"TOLD": str(port)},
    )


def test_a_component_whose_port_is_taken_gets_another_and_its_users_are_told(layout):
    free, notes = free_port(), Notes()
    with taken() as port:

        def plan(prefect: int) -> list[Component]:
            return [
                knower("service", prefect),
                knower("agent", 0),
                server(layout, "prefect", prefect),
            ]

        def move(name: str) -> list[Component]:
            assert name == "prefect"
            before["agent"] = pid(layout, "agent")
            return plan(free)

        before: dict[str, int] = {}
        up.start(layout, marker(layout), plan(port), notes, move)
    assert ports.listener(free, psutil.Process(pid(layout, "prefect"))) == "itself"
    assert psutil.Process(pid(layout, "service")).environ()["TOLD"] == str(free)
    assert pid(layout, "agent") == before["agent"]
    assert len(list(daemon.members(marker(layout)))) == 3


def test_it_is_moved_before_it_has_noticed_by_itself(layout):
    free = free_port()
    slow = LISTEN.replace("s=", "time.sleep(600); s=")
    with taken() as port:
        up.start(
            layout,
            marker(layout),
            [server(layout, "prefect", port, slow)],
            Silent(),
            lambda name: [server(layout, name, free)],
        )
    assert ports.listener(free, psutil.Process(pid(layout, "prefect"))) == "itself"


def test_port_of_an_outgoing_connection(layout):
    # The port is bound, but no server listens: connect() could connect to itself.
    free = free_port()
    with socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        port = client.getsockname()[1]
        up.start(
            layout,
            marker(layout),
            [server(layout, "prefect", port)],
            Silent(),
            lambda name: [server(layout, name, free)],
        )
    assert ports.listener(free, psutil.Process(pid(layout, "prefect"))) == "itself"


def test_it_does_not_move_for_ever(layout):
    moves: list[str] = []
    with taken() as port:

        def move(name: str) -> list[Component]:
            moves.append(name)
            return [server(layout, name, port)]

        with pytest.raises(ComponentFailed, match="prefect ended before it was ready"):
            up.start(layout, marker(layout), [server(layout, "prefect", port)], Silent(), move)
    assert len(moves) == up.MOVES
    assert list(daemon.members(marker(layout))) == []


def test_death_for_another_reason_is_not_taken_for_a_lost_port(layout):
    broken = server(layout, "prefect", free_port(), "raise SystemExit(7);")
    with pytest.raises(ComponentFailed, match="exit status 7"):
        up.start(layout, marker(layout), [broken], Silent(), lambda name: pytest.fail("moved"))


def test_one_that_dies_after_it_was_found_is_started_again_on_its_port(layout, monkeypatch):
    """What `cluster-up` meets right after a `kill -9`: a process that seems alive, and then its port."""
    port, notes = free_port(), Notes()
    component = server(layout, "prefect", port)
    up.start(layout, marker(layout), [component], Silent())
    first = daemon.running(layout, "prefect")
    assert first is not None
    held: list[socket.socket] = []
    waits: list[int] = []
    wait_until_free = ports.wait_until_free

    def dies_then_is_ready() -> bool:
        if not held:
            first.kill()
            psutil.wait_procs([first])
            held.append(socket.create_server(("127.0.0.1", port)))  # its last thread
        return component.is_ready()

    def wait(port: int, seconds: float) -> None:
        held[0].close()
        waits.append(port)
        wait_until_free(port, seconds)

    monkeypatch.setattr(ports, "wait_until_free", wait)
    dying = replace(component, is_ready=dies_then_is_ready)
    up.start(layout, marker(layout), [dying], notes, lambda name: pytest.fail("moved"))
    assert waits == [port]
    assert ports.listener(port, psutil.Process(pid(layout, "prefect"))) == "itself"
    assert pid(layout, "prefect") != first.pid
    assert any("is not running any more" in line for line in notes.lines)


class _Yes(http.server.BaseHTTPRequestHandler):
    """Answers as a healthy stranger without a password would."""

    def do_GET(self) -> None:
        known = self.path in ("/ready", "/health", "/api/health")
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Thief(Notes):
    """Takes the ports of Prefect and of the service once they have been chosen."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        super().__init__()
        self.folder = folder
        self.stack = stack
        self.stolen: list[int] = []

    def done(self, component: str, what: str, seconds: float | None = None) -> None:
        super().done(component, what, seconds)
        if (component, what) == ("postgres", "ready"):
            state = states.load(Layout.of(self.folder))
            assert state is not None
            for port in (state.prefect_port, state.master_port):
                self.steal(port)

    def steal(self, port: int) -> None:
        stranger = http.server.ThreadingHTTPServer(("127.0.0.1", port), _Yes)
        self.stack.callback(stranger.server_close)
        self.stack.callback(stranger.shutdown)
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        self.stolen.append(port)


def test_real_components_whose_ports_are_all_stolen(monkeypatch):
    names = ("postgres", "prefect", "service")
    with contextlib.ExitStack() as stack:
        # Not pytest's folder: another session closes those for Postgres' own user.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="det-cluster-")))
        data = folder / "data"
        thief = _Thief(data, stack)
        prepare = postgres.prepare

        def prepare_too_late(*args) -> None:
            prepare(*args)
            if not thief.stolen:
                state = states.load(Layout.of(data))
                assert state is not None and state.postgres_port
                thief.steal(state.postgres_port)

        monkeypatch.setattr(postgres, "prepare", prepare_too_late)
        stack.callback(cluster_down, data)
        state = cluster_up(data, components=names, reporter=thief)
        own = {state.postgres_port, state.prefect_port, state.master_port}
        assert len(thief.stolen) == 3
        assert not own & set(thief.stolen)
        for name in names:
            assert thief.has(f"{name} takes ")
        assert states.load(Layout.of(data)) == state
        assert probe.get(f"{state.prefect_api_url}/version", login=state.prefect_auth)
        ready = probe.get(f"{state.master_url}/ready")
        assert ready == {"status": "ready"}  # it uses its own Prefect
        told = json.loads((data / "service.json").read_text())
        assert told["prefect_api_url"] == state.prefect_api_url
        notes = Notes()
        assert cluster_up(data, components=names, reporter=notes) == state
        assert notes.lines == [f"{name} already running" for name in names]


def test_status_finds_a_live_component_without_its_pid_file_and_names_dead_ones(layout):
    layout.postgres.mkdir()
    alive = replace(knower("prefect", 0), argv=(sys.executable, "-c", SLEEP, PREFECT))
    up.start(layout, marker(layout), [alive, knower("service", 0)], Silent())
    prefect, service = pid(layout, "prefect"), pid(layout, "service")
    for name in ("prefect", "service"):
        layout.pid_file(name).unlink()
    psutil.Process(service).kill()
    rows = {row.component: row for row in cluster_status(layout.root)}
    assert rows["prefect"].pid == prefect
    assert rows["prefect"].state == "starting"
    assert (rows["service"].state, rows["service"].pid) == ("dead", None)
    assert rows["service"].log == str(layout.log("service"))
    assert rows["postgres"].state == rows["agent"].state == "stopped"
    cluster_down(layout.root)
    rows = {row.component: row for row in cluster_status(layout.root)}
    assert {row.state for row in rows.values()} == {"stopped"}
