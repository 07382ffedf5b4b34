"""Agents, supervisors and containers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.fork_server.launcher import Forked
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks import shared_dir
from determined_tasks.containers.settings import LABEL_AGENT, LABEL_WORK_DIR
from tests import container_engine
from tests.integration.containers.conftest import ContainerLegs
from tests.waiting import TIMEOUT_S

COUNT = """
import os, time
for i in range(600):
    os.write(1, b"%d\\n" % i)
    time.sleep(0.004)
os.write(1, b"end")
"""


async def until(legs: ContainerLegs, condition: Callable[[], object]) -> None:
    await asyncio.to_thread(legs.service.wait, condition)


def kill(held: Held) -> int:
    assert isinstance(held.running, Forked)
    pid = held.running.child.pid
    os.kill(pid, signal.SIGKILL)
    return pid


async def test_when_supervisors_are_killed_the_container_goes_on_and_no_line_is_lost(
    legs: ContainerLegs,
) -> None:
    held = await legs.start({"train.py": COUNT})
    pids = set()
    for number in (50, 200, 400):
        await until(legs, lambda number=number: f"\n{number}\n" in legs.service.text("stdout"))
        assert len(legs.containers()) == 1
        pids.add(kill(held))
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
    assert len(pids) == 3
    assert legs.service.text("stdout") == "".join(f"{i}\n" for i in range(600)) + "end"
    assert legs.service.exits["7.abc.1"]["exit_code"] == 0
    await held.clean_up()
    assert legs.containers() == []


async def test_a_supervisor_that_takes_over_keeps_what_was_compiled(legs: ContainerLegs) -> None:
    held = await legs.start({"train.py": COUNT})
    await until(legs, lambda: "\n50\n" in legs.service.text("stdout"))
    kill(held)
    await until(legs, lambda: "\n200\n" in legs.service.text("stdout"))
    (found,) = (legs.config.work_dir / "compiled").iterdir()
    assert not shared_dir.remove(found)
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
    await held.clean_up()
    assert not found.exists(), "nothing was compiled"


@pytest.mark.parametrize("number", [None, signal.SIGUSR1])
async def test_an_agent_that_comes_back_has_the_containers_whose_supervisors_died_with_it(
    agent_config: AgentConfig, legs: ContainerLegs, number: signal.Signals | None
) -> None:
    held = await legs.start({"train.py": COUNT})
    await until(legs, lambda: "\n50\n" in legs.service.text("stdout"))
    held.ended.cancel()  # the agent is gone
    kill(held)
    (name,) = legs.containers()
    async with DockerLauncher(agent_config, no_model_definition) as launcher:
        (running,) = await launcher.adopt()
        assert (running.kind, running.id) == ("leg", "7.abc.1")
        assert legs.containers() == [name]
        again = Held(launcher, running)
        if number is not None:
            await again.signal(number)  # there is no supervisor yet
        assert (await asyncio.wait_for(again.ended, TIMEOUT_S)).in_order
        await again.clean_up()
    ended = legs.service.exits["7.abc.1"]
    if number is None:
        assert ended["exit_code"] == 0
        assert legs.service.text("stdout") == "".join(f"{i}\n" for i in range(600)) + "end"
    else:
        assert ended["signal"] == 9
    assert legs.containers() == []


async def test_an_order_that_comes_twice_starts_one_container(legs: ContainerLegs) -> None:
    held = await legs.start({}, entrypoint="echo here; sleep 600")
    await until(legs, lambda: "here" in legs.service.text("stdout"))
    second = await legs.start({}, entrypoint="echo here; sleep 600")
    assert (await asyncio.wait_for(second.ended, TIMEOUT_S)).in_order
    await second.clean_up()
    assert len(legs.containers()) == 1
    await held.signal(signal.SIGUSR1)
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order


async def test_containers_of_unknown_legs_are_removed_at_the_agents_start(
    agent_config: AgentConfig, legs: ContainerLegs
) -> None:
    held = await legs.start({}, entrypoint="echo here; sleep 600")
    await until(legs, lambda: "here" in legs.service.text("stdout"))
    mine = f"{LABEL_WORK_DIR}={agent_config.work_dir}"
    image = agent_config.container.images["cpu"]
    for name, labels in (
        ("stale", [f"{LABEL_AGENT}=agent-1", mine]),
        ("others", [f"{LABEL_AGENT}=agent-1", f"{LABEL_WORK_DIR}=/elsewhere"]),
    ):
        options = [word for label in labels for word in ("--label", label)]
        subprocess.run(  # noqa: ASYNC221
            [
                "docker",
                "run",
                "--detach",
                "--name",
                f"test-{name}",
                *options,
                image,
                "sleep",
                "600",
            ],
            check=True,
            capture_output=True,
        )
    try:
        async with DockerLauncher(agent_config, no_model_definition) as launcher:
            await launcher.adopt()
        assert len(legs.containers()) == 1
        assert "test-others" in container_engine.containers()
        assert "test-stale" not in container_engine.containers()
    finally:
        container_engine.remove("test-others")
        container_engine.remove("test-stale")
    await held.signal(signal.SIGUSR1)
    assert (await asyncio.wait_for(held.ended, TIMEOUT_S)).in_order
