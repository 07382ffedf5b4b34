"""The agent against a service that hands out work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from determined.common.wire.agents import Slot
from determined.common.wire.message import WireError
from determined.common.wire.version import VERSION
from determined_deployments.agent import agent as agents
from determined_deployments.agent.agent import AgentRefused, AgentRunner
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.launchers import built_in
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks.context_dir import allocation_dir
from determined_tasks.supervision import LegRecord
from tests.programs.agent.conftest import FakeControl, running
from tests.programs.agent.subprocess_launcher import TellingLauncher
from tests.programs.legs.fake_service import archive, spec
from tests.waiting import TIMEOUT_S, until, until_async

SUBPROCESS = "tests.programs.agent.subprocess_launcher:SubprocessLauncher"

either_launcher = pytest.mark.parametrize(
    "launcher", ["fork_server", SUBPROCESS], ids=["forks", "subprocesses"]
)
"""The agent's core is the same, whatever starts its jobs."""


@pytest.fixture
def launcher() -> str:
    return "fork_server"


@pytest.fixture
def config(config: AgentConfig, launcher: str, monkeypatch: pytest.MonkeyPatch) -> AgentConfig:
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    return config.model_copy(update={"launcher": launcher})


def leg_dir(config: AgentConfig, allocation_id: str) -> Path:
    """Where the leg's supervisor keeps its record, for tests that kill it."""
    made = built_in.load(config.launcher)(config, no_model_definition)
    return allocation_dir(made.work_dir("leg", allocation_id), allocation_id)


SLEEP = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"


@either_launcher
async def test_runs_the_services_operations(config: AgentConfig, control: FakeControl) -> None:
    async with running(config):
        await control.until(lambda: control.registrations)
        for number in range(4):
            control.start(spec(f"7.abc.{number}"))
        await control.until(lambda: len(control.exits) == 4)
    body = control.registrations[0]
    assert body["resource_pool"] == "default"
    assert [slot["id"] for slot in body["slots"]] == [0, 1]
    assert body["allocations"] == []
    assert control.text("stdout") == "trained\n" * 4
    assert all(ended["exit_code"] == 0 for ended in control.exits.values())
    assert not any(leg_dir(config, f"7.abc.{number}").exists() for number in range(4))


@either_launcher
async def test_a_supervisor_has_the_token_of_its_order_and_not_the_agents(
    config: AgentConfig, control: FakeControl
) -> None:
    config = config.model_copy(update={"agent_token": SecretStr("agents-own-secret")})
    async with running(config):
        await control.until(lambda: control.registrations)
        control.start(spec("7.abc.1", supervisor_token="of-leg-1"))
        # The order of a service of the release before.
        control.start(spec("7.abc.2"))
        await control.until(lambda: len(control.exits) == 2)
    by_leg: dict[str, set[str]] = {"7.abc.1": set(), "7.abc.2": set()}
    for path, sender in control.senders:
        for allocation_id, senders in by_leg.items():
            if f"/allocations/{allocation_id}/" in path:
                senders.add(sender)
    assert by_leg == {"7.abc.1": {"Bearer of-leg-1"}, "7.abc.2": {"Bearer agents-own-secret"}}
    logs = {sender for path, sender in control.senders if path.endswith("/logs")}
    assert logs == {"Bearer of-leg-1", "Bearer agents-own-secret"}


@either_launcher
async def test_kill_reaches_the_process(config: AgentConfig, control: FakeControl) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        polls = len(control.polls)
        control.end("7.abc.1")
        await control.until(lambda: "7.abc.1" in control.exits)
        assert control.exits["7.abc.1"]["kind"] == "exited"
        assert not psutil.pid_exists(int(control.text("stdout")))
        assert len(control.polls) - polls < 20, "a kill in progress must not make a hot loop"


@either_launcher
async def test_registers_again_when_the_service_forgot_it(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        control.session = "another"
        await control.until(lambda: len(control.registrations) == 2)
        assert control.registrations[1]["allocations"] == ["7.abc.1"]


async def test_waits_for_a_service_that_is_not_up(
    config: AgentConfig, control: FakeControl
) -> None:
    refused = [503, 502, 503]
    register = control.answers["register"]
    control.answers["register"] = lambda body: (refused.pop(), {}) if refused else register(body)
    async with running(config):
        await control.until(lambda: control.registrations)
    assert not refused


@either_launcher
async def test_stopping_the_agent_ends_its_legs_as_infrastructure(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
    ended = control.exits["7.abc.1"]
    assert (ended["kind"], ended["reason"]) == ("infrastructure", "stopped together with its agent")


@either_launcher
async def test_supervisor_that_dies_is_reported_by_the_agent(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        record = LegRecord.read(leg_dir(config, "7.abc.1"))
        assert record is not None
        os.kill(record.supervisor.pid, signal.SIGKILL)
        await control.until(lambda: "7.abc.1" in control.exits)
        assert control.exits["7.abc.1"]["kind"] == "infrastructure"
        assert record.user is not None
        await until_async("the end of the process", lambda: not record.user.is_alive())


@either_launcher
async def test_one_agent_runs_several_nodes_of_a_gang(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    names = ["7.abc.1.n0", "7.abc.1.n1"]
    over = threading.Event()

    def wait_for_the_others(body: Any) -> tuple[int, Any]:
        over.wait(TIMEOUT_S)
        return 409, {}

    control.answers["rendezvous"] = wait_for_the_others
    async with running(config):
        for node, name in enumerate(names):
            order = spec("7.abc.1", node=node, nodes=2, leg_id=name, slot_ids=[node])
            control.launch[name] = order
        await until_async(
            "both records", lambda: all(LegRecord.read(leg_dir(config, name)) for name in names)
        )
        await control.until(lambda: sorted(control.polls[-1]["running"]) == names)
        record = LegRecord.read(leg_dir(config, names[1]))
        assert record is not None
        os.kill(record.supervisor.pid, signal.SIGKILL)
        await control.until(lambda: control.exits)
        assert control.exits["7.abc.1"]["node"] == 1
        control.kill.add(names[0])
        await control.until(lambda: control.polls[-1]["running"] == [])
        over.set()


telling_launcher = pytest.mark.parametrize(
    "launcher", ["tests.programs.agent.subprocess_launcher:TellingLauncher"]
)


@telling_launcher
async def test_the_agent_reports_changing_slots_and_a_legs_wait(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    why = "0/3 nodes are available: insufficient nvidia.com/gpu"
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        launcher = TellingLauncher.made
        launcher.tell([Slot(0), Slot(1, draining=True), Slot(7)], why)
        await control.until(lambda: control.states)
        launcher.tell([Slot(7)], goes="node n1 is drained")
        await control.until(lambda: len(control.states) == 2)
        launcher.tell([Slot(7)], machine="n1")
        await control.until(lambda: len(control.states) == 3)
        # A service that has forgotten the agent gets the agent's present slots.
        control.session = "another"
        await control.until(lambda: len(control.registrations) == 2)
        # Who registers anew tells of legs again.
        await control.until(lambda: len(control.states) == 4)
    first, second, *last = control.states[:4]
    assert second["machines"] == {}
    assert [one["machines"] for one in last] == [{"7.abc.1": "n1"}] * 2
    assert [(slot["id"], slot["draining"]) for slot in first["slots"]] == [
        (0, False),
        (1, True),
        (7, False),
    ]
    assert first["waiting"] == {"7.abc.1": why} and second["waiting"] == {}
    assert first["leaving"] == {} and second["leaving"] == {"7.abc.1": "node n1 is drained"}
    assert [slot["id"] for slot in second["slots"]] == [7]
    assert [slot["id"] for slot in control.registrations[1]["slots"]] == [7]


@telling_launcher
async def test_an_end_has_the_kind_and_the_reason_that_the_launcher_knows(
    config: AgentConfig, control: FakeControl
) -> None:
    control.model_defs["d1"] = archive({"train.py": SLEEP})
    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        record = LegRecord.read(leg_dir(config, "7.abc.1"))
        assert record is not None
        os.kill(record.supervisor.pid, signal.SIGKILL)
        await control.until(lambda: "7.abc.1" in control.exits)
    ended = control.exits["7.abc.1"]
    assert (ended["kind"], ended["signal"], ended["exit_code"]) == ("exited", 9, None)
    assert ended["reason"] == "out of memory: its limit is 64 MiB"


def start_agent(config: AgentConfig, tmp_path: Path) -> subprocess.Popen[bytes]:
    """A separate agent process, to be killed."""
    file = tmp_path / "agent.json"
    settings = json.loads(config.model_dump_json(exclude_unset=True))
    settings["agent_token"] = config.agent_token.get_secret_value()
    file.write_text(json.dumps(settings))
    code = (
        "from determined_deployments.agent import __main__ as main\n"
        "from determined_deployments.agent.launchers.fork_server import plans\n"
        "plans.TRIAL_OPTIONAL = []\nmain.main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "DET_AGENT_CONFIG": str(file)}
    )


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@either_launcher
def test_legs_survive_the_agent_and_are_adopted(
    config: AgentConfig, control: FakeControl, tmp_path: Path, launcher: str
) -> None:
    """kill -9 of the agent: its fork server ends, training goes on, and the next agent knows it."""
    control.model_defs["d1"] = archive(
        {
            "train.py": "import os, sys, time\nprint(os.getpid())\nwhile not os.path.exists(sys.argv[1]):"
            "\n    time.sleep(0.02)\nprint('done')"
        }
    )
    go = tmp_path / "go"
    first = start_agent(config, tmp_path)
    try:
        control.start(spec("7.abc.1", entrypoint=f"python3 train.py {go}1"))
        control.start(spec("7.abc.2", entrypoint=f"python3 train.py {go}2"))
        control.wait(lambda: control.text("stdout").count("\n") == 2)
        zygotes = [p for p in children_of(first.pid) if "zygote" in " ".join(p.cmdline())]
        legs = {p.pid for p in zygotes if not p.children()}
        assert zygotes or launcher != "fork_server"
        first.send_signal(signal.SIGKILL)
        first.wait()
        # Ends while no agent runs.
        Path(f"{go}1").touch()
        control.wait(lambda: "7.abc.1" in control.exits)
        assert control.exits["7.abc.1"]["exit_code"] == 0
    finally:
        first.kill()
    second = start_agent(config, tmp_path)
    try:
        control.wait(lambda: len(control.registrations) == 2)
        assert control.registrations[1]["allocations"] == ["7.abc.2"]
        control.end("7.abc.2")
        control.wait(lambda: "7.abc.2" in control.exits)
        assert control.exits["7.abc.2"]["signal"] == signal.SIGKILL
        control.wait(lambda: control.polls[-1]["running"] == [])
    finally:
        second.terminate()
        assert second.wait(TIMEOUT_S) == 0
    until(
        "the end of the agent's fork server",
        lambda: [one for one in zygotes if one.pid not in legs and one.is_running()],
        equals=[],
    )


def is_zygote(process: psutil.Process) -> bool:
    """Whether it is a fork server; earlier tests of this process may have left children that have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "fork_server.zygote" in " ".join(process.cmdline())
    return False


@pytest.mark.parametrize("which", ["root", "trial"])
async def test_fork_server_that_dies_is_started_again(
    config: AgentConfig, control: FakeControl, which: str
) -> None:
    control.model_defs["d1"] = archive(
        {
            "train.py": "import os, sys, time\nprint('begun')\nwhile not os.path.exists(sys.argv[1]):"
            "\n    time.sleep(0.02)\nprint('done')"
        }
    )
    go = config.work_dir.parent / "go"
    agent_process = psutil.Process()
    async with running(config):
        await control.until(lambda: control.registrations)
        await asyncio.sleep(0.5)  # for the trial zygote, which needs no torch here
        control.start(spec("7.abc.1", entrypoint=f"python3 train.py {go}"))
        await control.until(lambda: control.text("stdout") == "begun\n")
        root = next(p for p in agent_process.children() if is_zygote(p))
        victim = root if which == "root" else root.children()[0]
        victim.kill()
        await asyncio.sleep(0.3)
        control.start(spec("7.abc.2", entrypoint=f"python3 train.py {go}"))
        await control.until(lambda: control.text("stdout") == "begun\n" * 2)
        go.touch()
        await control.until(lambda: len(control.exits) == 2)
    assert {ended["exit_code"] for ended in control.exits.values()} == {0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_agent_that_is_told_to_end_signs_off(
    config: AgentConfig, control: FakeControl, tmp_path: Path, number: signal.Signals
) -> None:
    process = start_agent(config, tmp_path)
    try:
        await control.until(lambda: control.polls)
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert control.signed_off == [control.session]


@either_launcher
async def test_an_agent_that_ends_shows_signs_of_life_while_its_legs_store_what_they_have(
    config: AgentConfig, control: FakeControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "HEARTBEAT_S", 0.05)
    config = config.model_copy(update={"grace_seconds": 200.0})
    script = "import os\nprint('here', flush=True)\nwhile not os.path.exists({!r}): pass\n"
    control.model_defs["d1"] = archive({"train.py": script.format(str(tmp_path / "go"))})

    async def let_go() -> None:
        await control.until(lambda: len(control.signed_off) >= 3)
        (tmp_path / "go").touch()

    async with running(config):
        control.start(spec())
        await control.until(lambda: control.text("stdout"))
        going = asyncio.create_task(let_go())
    await going
    assert control.exits["7.abc.1"]["exit_code"] == 0
    assert set(control.signed_off) == {control.session}


async def test_a_service_that_is_away_does_not_hold_up_an_agents_end(
    config: AgentConfig, control: FakeControl
) -> None:
    async with running(config):
        await control.until(lambda: control.polls)
        control.answers["sign-off"] = lambda body: (503, {"error": {"error": "away"}})
    assert control.signed_off == []


async def test_fault_in_a_loop_ends_the_agent(config: AgentConfig, control: FakeControl) -> None:
    """An answer that no service sends: the agent must end rather than seem to work."""
    control.answers["work"] = lambda body: (200, {"launch": []})
    with pytest.raises(WireError, match="kill"):
        await asyncio.wait_for(AgentRunner(config).run(), TIMEOUT_S)


@pytest.mark.parametrize("status", [400, 409])
async def test_an_agent_that_is_refused_ends_and_leaves_the_legs_that_it_found(
    config: AgentConfig, control: FakeControl, tmp_path: Path, status: int
) -> None:
    go = tmp_path / "go"
    script = (
        "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"
    )
    control.model_defs["d1"] = archive({"train.py": script})
    first = start_agent(config, tmp_path)
    try:
        control.start(spec(entrypoint=f"python3 train.py {go}"))
        await control.until(lambda: any(path.endswith("/running") for path in control.paths()))
    finally:
        first.kill()
        first.wait()
    words = "agent agent-1 runs release 0.1.0, too old for this service"
    control.answers["register"] = lambda body: (status, {"error": {"error": words}})
    with pytest.raises(AgentRefused, match=words):
        await asyncio.wait_for(AgentRunner(config).run(), TIMEOUT_S)
    assert control.exits == {}
    assert control.signed_off == []
    go.touch()
    await control.until(lambda: control.exits)
    assert control.exits["7.abc.1"]["exit_code"] == 0


@pytest.mark.parametrize("launcher", ["tests.programs.agent.subprocess_launcher:KeepingLauncher"])
async def test_legs_on_other_machines_go_on_when_their_agent_is_told_to_end(
    config: AgentConfig, control: FakeControl, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = (
        "import sys, time, pathlib\nprint('on', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"
    )
    control.model_defs["d1"] = archive({"train.py": script})
    async with running(config):
        control.start(spec(entrypoint=f"python3 train.py {go}"))
        await control.until(lambda: control.text("stdout"))
    # Else the service would give the leg to another agent.
    assert (control.exits, control.signed_off) == ({}, [])
    async with running(config):
        await control.until(lambda: control.registrations[-1]["allocations"] == ["7.abc.1"])
        go.touch()
        await control.until(lambda: control.exits)
    assert control.exits["7.abc.1"]["exit_code"] == 0


async def test_an_agent_says_which_version_of_the_wire_it_speaks(
    config: AgentConfig, control: FakeControl
) -> None:
    async with running(config):
        await control.until(lambda: control.polls)
    (registration,) = control.registrations
    assert registration["wire"] == control.polls[0]["wire"] == VERSION
