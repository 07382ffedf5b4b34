"""A supervisor's door: who is admitted, which program runs, when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from determined.common import stacks as answering
from determined.common.wire import doors as wire
from determined.common.wire import gate, shells
from determined.common.wire.doors import Hello
from determined.common.wire.legs import LegSpec
from determined.common.wire.shells import Frame, Frames
from determined.exec import stacks
from determined_service.proxy import gates
from determined_tasks import bell, leg_groups, ports
from determined_tasks.beside import ProcessEntry
from determined_tasks.context_dir import ContextDir
from determined_tasks.doors import Doors, main_variable
from determined_tasks.leg_groups import GroupsUnavailable, LegGroup
from determined_tasks.limits import Limits
from determined_tasks.packages import Packages
from determined_tasks.task_environment import AgentSide
from tests.waiting import TIMEOUT_S, until

SECRET = "open sesame"
ENV = {"PATH": os.environ["PATH"], "DET_TRIAL_ID": "3", "DET_SESSION_TOKEN": "the task's"}


class Visitor:
    """A connection to the door."""

    def __init__(self, port: int | socket.socket) -> None:
        if isinstance(port, int):
            port = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket = port
        self._frames = Frames()
        self.said: dict[int, bytes] = {}

    def begin(self, secret: str = SECRET, **hello: Any) -> Visitor:
        content = json.dumps({"secret": secret, **Hello(**hello).to_json()}).encode()
        self.socket.sendall(shells.frame(Frame.HELLO, content))
        return self

    def read(self) -> bool:
        data = self.socket.recv(1 << 16)
        for kind, content in self._frames.feed(data):
            self.said[kind] = self.said.get(kind, b"") + content
        return bool(data)

    def end(self) -> dict[int, bytes]:
        with contextlib.closing(self.socket):
            while self.read():
                pass
        return self.said


@pytest.fixture
def group() -> Iterator[LegGroup]:
    """The leg's control group; without folders if the agent cannot make any."""
    homes: list[Path] = []
    with contextlib.suppress(GroupsUnavailable):
        homes = leg_groups.homes(f"determined-test-{secrets.token_hex(4)}")
    limits = Limits(homes=tuple(map(str, homes)))
    group = LegGroup.of(limits, "1.1")
    group.make(limits)
    yield group
    assert group.end()
    for home in homes:
        home.rmdir()


@pytest.fixture
def doors(tmp_path: Path, group: LegGroup) -> Iterator[Doors]:
    place = AgentSide(tmp_path, "http://127.0.0.1:1", "agents", "a1")
    spec = LegSpec("1.1", "1", "python3 train.py", "token", "c")
    own = Packages(Path(sys.prefix))
    context = ContextDir(tmp_path, tmp_path, own)
    entry = ProcessEntry(ENV, tmp_path, context, None, Limits(open_files=77), group)
    doors = Doors(spec, place, entry, lambda text, level: None)
    yield doors
    doors._shut()


@pytest.fixture
def port(doors: Doors) -> int:
    state = doors.open(shells.hash_of(SECRET))
    assert not state.problem and not state.behind and doors.open(shells.hash_of(SECRET)) == state
    return state.port


async def test_on_another_machine_it_is_behind_a_gate(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "own_address", lambda master: "127.0.0.2")
    state = doors.open(shells.hash_of(SECRET))
    assert state.address == "127.0.0.2" and state.behind not in (0, state.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", state.behind))
    key = gate.key("agents", "1.1", wire.port_name(0))
    passed = await gates.connect(state.address, state.port, key)
    passed.setblocking(True)
    said = await asyncio.to_thread(Visitor(passed).begin(argv=["echo", "in"]).end)
    assert said[Frame.OUTPUT] == b"in\n"
    with pytest.raises(ConnectionError):
        await gates.connect(state.address, state.port, bytes(32))


def test_a_program_beside_the_task_has_its_limits(port: int, group: LegGroup) -> None:
    said = Visitor(port).begin(argv=["sh", "-c", "ulimit -n; cat /proc/self/cgroup"]).end()
    lines = said[Frame.OUTPUT].decode().splitlines()
    assert lines[0] == "77"
    for folder in group.folders:
        assert any(line.endswith(f"{folder.parent.name}/1.1") for line in lines)


def test_a_program_beside_the_task(port: int, tmp_path: Path) -> None:
    script = "cat; pwd; echo ${DET_SESSION_TOKEN-none} $DET_TRIAL_ID; echo bad >&2; exit 7"
    visitor = Visitor(port).begin(argv=["sh", "-c", script])
    visitor.socket.sendall(shells.frame(Frame.INPUT, b"given\n") + shells.frame(Frame.END))
    said = visitor.end()
    assert said[Frame.OUTPUT].decode() == f"given\n{tmp_path}\nnone 3\n"
    assert said[Frame.ERRORS] == b"bad\n" and json.loads(said[Frame.EXIT]) == {"code": 7}

    said = Visitor(port).begin(argv=["no-such-program"]).end()
    assert json.loads(said[Frame.EXIT]) == {"code": 127} and b"No such file" in said[Frame.ERRORS]
    said = Visitor(port).begin(argv=["sh", "-c", "stty size; kill -9 $$"], tty=True).end()
    assert said[Frame.OUTPUT] == b"24 80\r\n" and json.loads(said[Frame.EXIT]) == {"code": 137}


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"secret": "guessed"}, b"not the door's secret"),
        ({"argv": ["true"] * (wire.MOST_WORDS + 1)}, b"at most 1000 words"),
        ({"argv": ["tr\0ue"]}, b"no NUL"),
    ],
)
def test_refused_subjects(port: int, hello: dict[str, Any], words: bytes) -> None:
    visitor = Visitor(port).begin(**hello)
    while Frame.REFUSED not in visitor.said and visitor.read():
        pass
    visitor.socket.close()
    assert words in visitor.said[Frame.REFUSED]


def test_an_invalid_first_frame_ends_the_connection(port: int) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\1\xff\xff\xff\xff", shells.frame(Frame.HELLO, b"[")):
        visitor = Visitor(port)
        visitor.socket.sendall(said)
        visitor.socket.shutdown(socket.SHUT_WR)
        assert Frame.EXIT not in visitor.end()


def test_a_program_ends_with_its_connection_and_there_are_not_too_many(port: int) -> None:
    visitors = [
        Visitor(port).begin(argv=["sh", "-c", "echo $$; exec sleep 600"])
        for _ in range(wire.MOST_SESSIONS)
    ]
    for visitor in visitors:
        while Frame.OUTPUT not in visitor.said:
            assert visitor.read()
    full = Visitor(port)
    while Frame.REFUSED not in full.said:
        assert full.read()
    full.socket.close()
    assert b"16 programs run beside this task" in full.said[Frame.REFUSED]
    pids = [int(visitor.said[Frame.OUTPUT]) for visitor in visitors]
    assert all(psutil.pid_exists(pid) for pid in pids)
    for visitor in visitors:
        visitor.socket.close()
    until("they have ended", lambda: not any(psutil.pid_exists(pid) for pid in pids))
    until("there is room", lambda: Frame.EXIT in Visitor(port).begin(argv=["true"]).end())


def test_the_bell(tmp_path: Path) -> None:
    rung: list[int] = []
    assert not bell.ring(tmp_path)
    bell.listen(tmp_path, lambda: rung.append(1))
    assert bell.ring(tmp_path)
    until("it is heard", lambda: rung)


def test_a_process_tells_where_it_is_without_py_spy(tmp_path: Path) -> None:
    """Neither those beside the task nor other tasks' processes are shown."""
    script = (
        "import time\nfrom determined.common import stacks\nstacks.listen()\n"
        # On one line, because a reader of the word sends its request before the next line runs.
        "def deep():\n    print('here', flush=True); time.sleep(600)\ndeep()\n"
    )
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "other.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    env = {**os.environ, "DET_RUN_DIR": str(tmp_path), "RANK": "1"}
    with contextlib.ExitStack() as stack:
        # Not by psutil's children: their order is by process id, and ids begin again.
        train, other = (
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, name], cwd=tmp_path, env=env, stdout=subprocess.PIPE
                )
            )
            for name in ("train.py", "other.py")
        )
        for process in (train, other):
            stack.callback(process.kill)
            assert process.stdout is not None and process.stdout.readline() == b"here\n"
        asked = {
            "PATH": "/nowhere",
            wire.SUPERVISOR: str(os.getpid()),
            wire.RUN_DIR: str(tmp_path),
            **main_variable(train.pid, ["python3", "train.py", "--fast"]),
        }
        found = {one.pid: one for one in stacks.processes(asked)}
        # This process is not its own task.
        assert os.getpid() not in found and {train.pid, other.pid} <= found.keys()
        assert found[train.pid].words == "python3 train.py --fast" and found[train.pid].rank == 1
        told = stacks.dump(found[train.pid], asked)
        assert "line 5 in deep" in told and "no py-spy is installed here" in told
        assert not answering.is_caught(other.pid)
        assert "no stack: no py-spy" in stacks.dump(found[other.pid], asked)
        assert other.poll() is None
