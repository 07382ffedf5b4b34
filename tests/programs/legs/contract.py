"""The tests that every carrier must pass (:class:`determined_tasks.carrier.Carrier`).

They start legs as agents do, and look at what the service is told and at the leg's own directory: at no
process, container or address of this machine but those that the service is told. Subclass, and give
``outlives`` and a fixture ``legs``.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import tarfile
import threading
from typing import Any

import pytest

from determined.common.wire import paths, returned, shells
from determined.common.wire.shells import Frame
from determined_deployments.agent.held import Held
from determined_service.proxy import gates
from determined_tasks import bell
from determined_tasks.context_dir import WORKDIR
from determined_tasks.ports import LOOPBACK
from determined_tasks.supervision import KILL_SIGNAL, RECORD
from tests.programs.legs.launched import LaunchedLegs
from tests.waiting import TIMEOUT_S

COUNT = """
import os, time
for i in range(600):
    os.write(1, b"%d\\n" % i)
    time.sleep(0.004)
os.write(1, b"end")
"""
COUNTED = "".join(f"{number}\n" for number in range(600)) + "end"

LOOK = """
import determined, json, os, sys
info = determined.get_cluster_info()
print(json.dumps({
    "trial": [info.trial.trial_id, os.environ["DET_TRIAL_ID"], info.trial.hparams],
    "token": info.session_token, "files": sorted(os.listdir()), "mine": os.environ["MINE"],
    "agents": "secret" in open("/proc/self/environ").read() or "DET_AGENT_TOKEN" in os.environ,
}))
print("to stderr", file=sys.stderr)
"""

BYTES = """
import os
os.write(1, b"\\xff\\0 long:" + b"x" * 100_000 + b"\\n")
for i in range(20_000):
    os.write(1, b"%d\\n" % i)
os.write(1, b"x" * (32 << 10) + b"\\n" + b"y" * (16 << 10) + b"\\n")
os.write(1, b"no end")
"""

KEY = b"a key of a gate, of 32 bytes or so"
ENDS = "trap 'echo ended; exit 0' TERM; echo here; while true; do sleep 0.1; done"
STAYS = "echo here; sleep 600 & sleep 600"


class CarrierContract:
    """One test or more per promise."""

    outlives: bool

    def lose(self, held: Held) -> None:
        """Kills the leg's supervisor, unseen by the launcher."""
        raise NotImplementedError

    async def test_the_process_finds_its_code_and_its_environment(self, legs: LaunchedLegs) -> None:
        files = {"train.py": LOOK, "data.txt": "1"}
        ended = await legs.run(files, environment_variables=["MINE=yes"])
        assert ended["exit_code"] == 0, legs.service.text("stderr")
        assert json.loads(legs.service.text("stdout")) == {
            "trial": [21, "21", {"lr": 0.1}],
            "token": "v2.token",
            "files": ["data.txt", "train.py"],
            "mine": "yes",
            "agents": False,
        }
        assert legs.service.text("stderr") == "to stderr\n"

    async def test_start_and_output_are_told_before_the_end(self, legs: LaunchedLegs) -> None:
        await legs.run({}, entrypoint="echo -n unfinished")
        assert legs.service.text("stdout") == "unfinished"
        told = [path.rpartition("/")[2] for path in legs.service.paths()]
        assert told.count("running") == told.count("exit") == 1
        assert {"running", "logs"} <= set(told[: told.index("exit")])
        assert told[-1] == "exit"

    async def test_every_byte_of_the_output_arrives_in_order(self, legs: LaunchedLegs) -> None:
        assert (await legs.run({"train.py": BYTES}))["exit_code"] == 0
        first, *lines, x, y, last = legs.service.text("stdout").splitlines()
        assert first == "\\xff\0 long:" + "x" * 100_000
        assert lines == [str(number) for number in range(20_000)]
        assert (x, y, last) == ("x" * (32 << 10), "y" * (16 << 10), "no end")

    @pytest.mark.parametrize(
        ("entrypoint", "files", "end", "words"),
        [
            ("exit 3", {}, {"exit_code": 3}, "process exited with code 3"),
            (["sh", "-c", "exit 4"], {}, {"exit_code": 4}, "code 4"),
            ("kill -SEGV $$", {}, {"signal": 11}, "SIGSEGV"),
            ("kill -9 $$", {}, {"signal": 9}, "killed by signal 9"),
            ("echo $FROM", {"startup-hook.sh": "export FROM=hook\n"}, {"exit_code": 0}, ""),
            (
                "true",
                {"startup-hook.sh": "false\n"},
                {"exit_code": 1, "kind": "failed_to_start"},
                "startup-hook.sh failed with exit code 1",
            ),
            (
                ["no-such-program", "--x"],
                {},
                {"exit_code": None, "kind": "failed_to_start"},
                "entrypoint not found",
            ),
            (
                "python3 -c 'raise ValueError(7)'",
                {},
                {"exit_code": 1, "reason": "ValueError: 7"},
                "process exited with code 1",
            ),
        ],
    )
    async def test_the_end_is_told_as_it_was(
        self, legs: LaunchedLegs, entrypoint: Any, files: Any, end: dict[str, Any], words: str
    ) -> None:
        ended = await legs.run(files, entrypoint=entrypoint)
        assert {key: ended[key] for key in end} == end, (ended, legs.words())
        assert words in legs.words()
        assert legs.service.text("stdout") == ("hook\n" if "FROM" in str(entrypoint) else "")

    async def test_code_that_cannot_be_unpacked(self, legs: LaunchedLegs) -> None:
        legs.service.model_defs["d2"] = b"this is not a tar.gz"
        ended = await legs.run({}, model_def_hash="d2")
        assert ended["kind"] == "failed_to_start"
        assert "model definition" in ended["reason"]

    @pytest.mark.parametrize(
        ("number", "end"),
        [
            (KILL_SIGNAL, {"kind": "exited", "signal": 9, "reason": "as asked for"}),
            (
                signal.SIGTERM,
                {"kind": "infrastructure", "reason": "stopped together with its agent"},
            ),
        ],
    )
    async def test_a_signal_ends_it_at_once(
        self, legs: LaunchedLegs, number: signal.Signals, end: dict[str, Any]
    ) -> None:
        held = await legs.start({}, entrypoint=STAYS)
        await legs.said("here")
        await held.signal(number)
        ended = await legs.end(held)
        assert {key: ended[key] for key in end} == end

    @pytest.mark.parametrize(
        ("kind", "kept", "end"),
        [
            ("COMMAND", 200.0, {"kind": "exited", "exit_code": 0}),
            ("NOTEBOOK", 200.0, {"kind": "infrastructure", "exit_code": None}),
            ("TRIAL", 5.0, {"kind": "infrastructure", "exit_code": None}),
        ],
    )
    async def test_a_notice_leaves_it_time(
        self, legs: LaunchedLegs, kind: str, kept: float, end: dict[str, Any]
    ) -> None:
        legs.config.grace_seconds = kept
        held = await legs.start({}, entrypoint=["sh", "-c", ENDS], task_type=kind)
        await legs.said("here")
        await held.signal(signal.SIGTERM)
        ended = await legs.end(held)
        assert {key: ended[key] for key in end} == end, legs.words()
        assert ("ended" in legs.service.text("stdout")) == (kind != "TRIAL")
        if kind == "TRIAL":
            assert any(path.endswith("/notice") for path in legs.service.paths())

    async def test_a_signal_before_it_runs_lets_it_not_run(self, legs: LaunchedLegs) -> None:
        go = threading.Event()
        job = legs.job({}, entrypoint="echo here")
        assert job.leg is not None
        hash_ = str(job.leg.model_def_hash)
        path = paths.MODEL_DEFINITION.format(hash=hash_)
        legs.service.gets[path] = lambda: go.wait(TIMEOUT_S) and legs.service.model_defs[hash_]
        held = Held(legs.launcher, await legs.launcher.start(job))
        await legs.until(lambda: path in legs.service.paths())
        await held.signal(KILL_SIGNAL)
        go.set()
        assert (await legs.end(held))["reason"] == "as asked for"
        assert legs.service.text("stdout") == ""
        assert not any(path.endswith("running") for path in legs.service.paths())

    async def test_an_allocation_that_has_ended_is_not_trained(self, legs: LaunchedLegs) -> None:
        legs.service.answers["running"] = lambda _: (409, {"error": {"error": "it has ended"}})
        ended = await legs.run({}, entrypoint=STAYS)
        assert ended["kind"] == "infrastructure"
        assert ended["reason"] == "the allocation had ended before its process ran"

    @pytest.mark.parametrize("debug", [False, True])
    async def test_its_directory_is_removed_unless_it_is_to_be_looked_at(
        self, legs: LaunchedLegs, debug: bool
    ) -> None:
        await legs.run({}, {"debug": debug}, entrypoint="echo made > made")
        assert legs.folder().exists() == debug
        if debug:
            assert (legs.folder() / WORKDIR / "made").read_text() == "made\n"
            assert not (legs.folder() / RECORD).exists()

    async def test_an_order_that_comes_twice_runs_once(self, legs: LaunchedLegs) -> None:
        first = await legs.start({}, entrypoint=STAYS)
        await legs.said("here")
        second = await legs.start({}, entrypoint=STAYS)
        assert (await asyncio.wait_for(second.ended, TIMEOUT_S)).in_order
        await second.clean_up()
        assert not first.ended.done()
        await first.signal(KILL_SIGNAL)
        await legs.end(first)
        assert legs.service.text("stdout") == "here\n"

    async def test_a_supervisor_is_killed(self, legs: LaunchedLegs) -> None:
        held = await legs.start({"train.py": COUNT})
        await legs.said("\n50\n")
        self.lose(held)
        if self.outlives:
            await legs.said("\n200\n")
            self.lose(held)
            assert (await legs.end(held))["exit_code"] == 0
            assert legs.service.text("stdout") == COUNTED
            return
        assert not (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
        before = legs.service.text("stdout")
        assert legs.service.exits == {} and COUNTED.startswith(before)
        await held.clean_up()
        assert (await legs.run({"train.py": COUNT}))["exit_code"] == 0
        assert legs.service.text("stdout") == before + COUNTED

    async def test_its_ports_are_reached_once_a_server_listens(self, legs: LaunchedLegs) -> None:
        held = await legs.start(
            {"page": "hello"},
            entrypoint="python3 -m http.server $MY_PORT --bind $DET_LISTEN_HOST",
            ports=[{"name": "web", "env": "MY_PORT", "ready_path": "/", "gate_key": KEY.hex()}],
        )
        calls = legs.service.calls
        await legs.until(
            lambda: any(path.endswith("/port") and body["ready"] for _, path, body in calls)
        )
        running = next(body for _, path, body in calls if path.endswith("running"))
        # On the service's own machine, where this one is.
        assert running["address"] == LOOPBACK
        (port,) = running["ports"]
        if port["behind"]:
            reached = await gates.connect(LOOPBACK, port["port"], KEY)
            reader, writer = await asyncio.open_connection(sock=reached)
        else:
            reader, writer = await asyncio.open_connection(LOOPBACK, port["port"])
        writer.write(b"GET /page HTTP/1.0\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\nhello")
        writer.close()
        await held.signal(KILL_SIGNAL)
        await legs.end(held)

    async def test_entering_gives_the_tasks_environment(self, legs: LaunchedLegs) -> None:
        held = await legs.start({}, entrypoint=STAYS, environment_variables=["MINE=yes"])
        await legs.said("here")
        order = paths.DOOR_ORDER.format(allocation_id="7.abc.1", node=0)
        wanted = {"wanted": True, "secret_hash": shells.hash_of("open")}
        legs.service.gets[order] = json.dumps(wanted).encode
        assert bell.ring(legs.folder())
        calls = legs.service.calls
        await legs.until(lambda: any(path.endswith("/door") for _, path, _ in calls))
        door = next(body for _, path, body in calls if path.endswith("/door"))
        said = await asyncio.to_thread(
            _entered, (door["address"], door["port"]), ["sh", "-c", "echo $MINE $DET_TRIAL_ID"]
        )
        assert said[Frame.OUTPUT] == b"yes 21\n"
        assert json.loads(said[Frame.EXIT]) == {"code": 0}
        await held.signal(KILL_SIGNAL)
        await legs.end(held)

    async def test_its_files_come_back_before_the_end_is_told(self, legs: LaunchedLegs) -> None:
        files = {"same": "1", "other": "2"}
        await legs.run(files, {returned.FIELD: True}, entrypoint="echo 3 > other; echo 4 > new")
        service = legs.service
        (piece,) = service.puts.values()
        with tarfile.open(fileobj=io.BytesIO(piece), mode="r:gz") as tar:
            found = {
                member.name: tar.extractfile(member).read()  # type: ignore[union-attr]
                for member in tar.getmembers()
            }
        assert found == {"other": b"3\n", "new": b"4\n"}
        told = [path.rpartition("/")[2] for path in service.paths()]
        assert told.index("files") < told.index("exit")


def _entered(address: tuple[str, int], argv: list[str]) -> dict[int, bytes]:
    """The output of a program beside the task's."""
    said: dict[int, bytes] = {}
    hello = json.dumps({"secret": "open", "argv": argv}).encode()
    with socket.create_connection(address, TIMEOUT_S) as visitor:
        visitor.sendall(shells.frame(Frame.HELLO, hello) + shells.frame(Frame.END))
        frames = shells.Frames()
        while Frame.EXIT not in said and (data := visitor.recv(1 << 16)):
            for kind, content in frames.feed(data):
                said[kind] = said.get(kind, b"") + content
    return said
