"""The Docker engine is stopped, killed and started again under a leg."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.fork_server.forking import Forked
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from tests import container_engine
from tests.container_engine import Engine
from tests.integration.containers.conftest import ContainerLegs
from tests.waiting import TIMEOUT_S

COUNT = """
import os, time
i = 0
while not os.path.exists("stop"):
    print(i, flush=True)
    i += 1
    time.sleep(0.01)
print("last", flush=True)
"""


@pytest.fixture
def options() -> list[str]:
    """More of dockerd's."""
    return []


@pytest.fixture
def engine(options: list[str]) -> Iterator[Engine]:
    """A separate engine, instead of the session's."""
    with container_engine.own(*options) as made:
        if isinstance(made, str):
            pytest.skip(made)
        yield made


def check_count(lines: list[str], kills: int) -> None:
    """Each number once and in order, except for one gap at each ``kill -9`` of the engine, which loses lines
    that it has read but not written. Python writes a number and the end of its line one after the other, so
    that an empty line may be left in a gap.
    """
    numbers = [int(line) for line in lines if line]
    assert numbers == sorted(set(numbers)), lines
    gaps = [after for before, after in itertools.pairwise([-1, *numbers]) if after != before + 1]
    assert len(gaps) <= kills, lines
    assert lines.count("") <= len(gaps), lines
    assert set(lines) <= {"", *map(str, numbers)}


async def until(legs: ContainerLegs, condition: Callable[[], object]) -> None:
    await asyncio.to_thread(legs.service.wait, condition)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_engines_end_is_not_the_trials_fault(
    legs: ContainerLegs, engine: Engine, how: str
) -> None:
    held = await legs.start({"train.py": COUNT})
    await until(legs, lambda: "\n10\n" in legs.service.text("stdout"))
    (name,) = legs.containers()
    with engine.log_of(name) as log:
        await asyncio.to_thread(getattr(engine, how))
        await asyncio.to_thread(engine.start)
        assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
        written = log.lines()
    await held.clean_up()
    ended = legs.service.exits["7.abc.1"]
    assert ended["kind"] == "infrastructure", ended
    assert "the Docker engine was stopped" in ended["reason"]
    shipped = legs.service.text("stdout").splitlines()
    assert shipped == written
    check_count(shipped, kills=int(how == "kill"))
    assert legs.containers() == []


async def test_a_leg_waits_for_an_engine_that_is_away(legs: ContainerLegs, engine: Engine) -> None:
    await asyncio.to_thread(engine.stop)
    held = await legs.start({}, entrypoint="echo here")
    await until(legs, lambda: "it is tried again in 1 s" in legs.words())
    await asyncio.to_thread(engine.start)
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
    await held.clean_up()
    assert legs.service.exits["7.abc.1"]["exit_code"] == 0, legs.service.exits
    assert legs.service.text("stdout") == "here\n"


@pytest.mark.parametrize("options", [["--live-restore"]])
async def test_with_live_restore_the_container_goes_on(legs: ContainerLegs, engine: Engine) -> None:
    held = await legs.start({"train.py": COUNT})
    await until(legs, lambda: "\n10\n" in legs.service.text("stdout"))
    (name,) = legs.containers()
    with engine.log_of(name) as log:
        for number, how in ((10, engine.stop), (100, engine.kill)):
            await until(legs, lambda number=number: f"\n{number}\n" in legs.service.text("stdout"))
            await asyncio.to_thread(how)
            await asyncio.to_thread(engine.start)
        assert legs.containers() == [name]
        await until(legs, lambda: "\n200\n" in legs.service.text("stdout"))
        container_engine.run_inside(name, "touch", "stop")
        assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
        written = log.lines()
    await held.clean_up()
    assert legs.service.exits["7.abc.1"]["exit_code"] == 0, legs.service.exits
    shipped = legs.service.text("stdout").splitlines()
    assert shipped == written
    assert shipped[-1] == "last"
    check_count(shipped[:-1], kills=1)
    assert legs.containers() == []


async def test_next_supervisor_reports_a_power_cut(
    agent_config: AgentConfig, legs: ContainerLegs, engine: Engine
) -> None:
    """No process observed the end of the container."""
    held = await legs.start({"train.py": COUNT})
    await until(legs, lambda: "\n10\n" in legs.service.text("stdout"))
    (name,) = legs.containers()
    first = container_engine.first_process(name)
    held.ended.cancel()
    assert isinstance(held.running, Forked)
    os.kill(held.running.child.pid, signal.SIGKILL)
    engine.kill()
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(engine.start)
    async with DockerLauncher(agent_config, no_model_definition) as launcher:
        (running,) = await launcher.adopt()
        again = Held(launcher, running)
        assert (await asyncio.wait_for(again.ended, TIMEOUT_S)).in_order
        await again.clean_up()
    ended = legs.service.exits["7.abc.1"]
    assert ended["kind"] == "infrastructure", ended
    assert legs.containers() == []


async def test_after_a_restart_a_containers_end_is_its_own_again(
    legs: ContainerLegs, engine: Engine
) -> None:
    await asyncio.to_thread(engine.stop)
    await asyncio.to_thread(engine.start)
    ended = await legs.run({}, entrypoint="kill -TERM $$")
    assert (ended["kind"], ended["signal"]) == ("exited", 15)
