"""Agents, supervisors and containers that are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess

import pytest

from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.docker.launcher import DockerLauncher
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_tasks import shared_dir
from determined_tasks.containers.settings import LABEL_AGENT, LABEL_WORK_DIR
from tests import container_engine
from tests.integration.containers.conftest import ContainerLegs
from tests.programs.legs.contract import COUNT, COUNTED
from tests.programs.legs.launched import lose
from tests.waiting import TIMEOUT_S


async def test_a_successor_of_a_supervisor_keeps_compiled_code(legs: ContainerLegs) -> None:
    held = await legs.start({"train.py": COUNT})
    await legs.until(lambda: "\n50\n" in legs.service.text("stdout"))
    lose(held)
    await legs.until(lambda: "\n200\n" in legs.service.text("stdout"))
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
    await legs.until(lambda: "\n50\n" in legs.service.text("stdout"))
    held.ended.cancel()  # the agent is gone
    lose(held)
    (name,) = legs.containers()
    async with DockerLauncher(agent_config, no_model_definition) as launcher:
        (running,) = await launcher.adopt()
        assert (running.kind, running.id) == ("leg", "7.abc.1")
        assert legs.containers() == [name]
        again = Held(launcher, running)
        if number is not None:
            await again.signal(number)  # the supervisor has not started yet
        assert (await asyncio.wait_for(again.ended, TIMEOUT_S)).in_order
        await again.clean_up()
    ended = legs.service.exits["7.abc.1"]
    if number is None:
        assert ended["exit_code"] == 0
        assert legs.service.text("stdout") == COUNTED
    else:
        assert ended["signal"] == 9
    assert legs.containers() == []


async def test_containers_of_unknown_legs_are_removed_at_the_agents_start(
    agent_config: AgentConfig, legs: ContainerLegs
) -> None:
    held = await legs.start({}, entrypoint="echo here; sleep 600")
    await legs.until(lambda: "here" in legs.service.text("stdout"))
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
