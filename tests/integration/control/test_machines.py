"""A trial on two machines: they meet through the service, train together and end together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import uvicorn
import yaml

from determined_registry.database.tables import allocation_resources
from determined_service.__main__ import GracefulServer
from tests.integration.control.world import Driver, Trial, World, ok
from tests.integration.machines import Machine, machines
from tests.waiting import TIMEOUT_S, until_async

EXAMPLE = Path(__file__).parents[3] / "examples/distributed"
# Two workers on the first machine, one on the second.
SLOTS = ([0, 1], [3])
PROGRAM = (
    f"{sys.executable} -m determined.exec.prep_container --rendezvous && "
    f"exec {sys.executable} -m determined.launch.torch_distributed -- python3 train.py"
)


@pytest.fixture
async def network(world: World) -> AsyncIterator[tuple[str, list[Machine]]]:
    """The service's URL, and two machines that reach it."""
    with machines(2) as (here, others), socket.socket() as listener:
        listener.bind((here, 0))
        listener.listen(128)
        config = uvicorn.Config(world.app, log_level="warning", lifespan="off")
        server = GracefulServer(world.app, config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        yield f"http://{here}:{listener.getsockname()[1]}", others
        server.should_exit = True
        await serving


async def place(world: World, epochs: int) -> tuple[Driver, Trial]:
    """The example's trial, on two machines, in the form in which the scheduler places gangs."""
    config = yaml.safe_load((EXAMPLE / "distributed.yaml").read_text())
    config["searcher"]["max_length"] = {"epochs": epochs}
    await world.register()
    driver = await world.started(yaml.safe_dump(config))
    trial = await world.launched()
    ok(await trial.started())
    rows = [
        {
            "allocation_id": trial.allocation_id,
            "id": f"{trial.allocation_id}.agent-{number}",
            "agent_id": f"agent-{number}",
            "slot_ids": slots,
        }
        for number, slots in enumerate(SLOTS)
    ]
    async with world.app.state.db.tx() as conn:
        await conn.execute(sa.insert(allocation_resources), rows)
    return driver, trial


def environment(trial: Trial, url: str, number: int, folder: Path) -> dict[str, str]:
    """The variables that an agent's supervisor gives a container."""
    spec: dict[str, Any] = trial.spec
    given = {
        "DET_MASTER": url,
        "DET_CLUSTER_ID": spec["cluster_id"],
        "DET_AGENT_ID": f"agent-{number}",
        "DET_SLOT_IDS": json.dumps(SLOTS[number]),
        "DET_TASK_ID": spec["task_id"],
        "DET_ALLOCATION_ID": trial.allocation_id,
        "DET_RESOURCES_ID": f"{trial.allocation_id}.agent-{number}",
        "DET_SESSION_TOKEN": spec["session_token"],
        "DET_TASK_TYPE": "TRIAL",
        "DET_TRIAL_ID": str(trial.id),
        "DET_EXPERIMENT_ID": str(spec["experiment_id"]),
        "DET_TRIAL_SEED": str(spec["trial_seed"]),
        "DET_EXPERIMENT_CONFIG": json.dumps(spec["config"]),
        "DET_HPARAMS": json.dumps(spec["hparams"]),
        "DET_RUN_DIR": str(folder / f"run-{number}"),
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **given}


@contextlib.asynccontextmanager
async def started(
    trial: Trial, network: tuple[str, list[Machine]], folder: Path
) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """The program on both machines; each has its own directory for its output."""
    url, others = network
    running = []
    alive = asyncio.create_task(heartbeats(trial.world))
    try:
        for number, machine in enumerate(others):
            with (folder / f"log-{number}").open("wb") as log:
                running.append(
                    await asyncio.create_subprocess_exec(
                        *machine.command("sh", "-c", PROGRAM),
                        env=environment(trial, url, number, folder),
                        cwd=folder,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        yield running
    finally:
        for process in running:
            kill(process)
            await process.wait()
        alive.cancel()


async def heartbeats(world: World) -> None:
    """The agent's: without them its allocation would be given up."""
    while True:
        await world.work(2)


def kill(process: asyncio.subprocess.Process) -> None:
    """As after a power cut, except for the network."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def logs(folder: Path) -> list[str]:
    return [(folder / f"log-{number}").read_text() for number in range(len(SLOTS))]


async def test_two_machines_train_one_model(
    world: World, network: tuple[str, list[Machine]], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text((EXAMPLE / "train.py").read_text())
    driver, trial = await place(world, epochs=3)
    driving = asyncio.create_task(driver.drive())
    async with started(trial, network, tmp_path) as running:
        codes = await asyncio.gather(*(process.wait() for process in running))
    first, second = logs(tmp_path)
    assert codes == [0, 0], first + second
    addresses = [machine.address for machine in network[1]]
    assert first.startswith(f"container 0 of {', '.join(addresses)}\n")
    assert second.startswith("container 1 of ")
    assert "epoch 3: accuracy" in first
    ok(await trial.exited())
    assert await asyncio.wait_for(driving, TIMEOUT_S) == "COMPLETED"
    found = ok(await world.user.get(f"/api/v1/trials/{trial.id}"))["trial"]
    assert found["bestValidation"]["metrics"]["avgMetrics"]["accuracy"] > 0.8


async def test_one_machine_lost_ends_the_other(
    world: World, network: tuple[str, list[Machine]], tmp_path: Path
) -> None:
    script = (EXAMPLE / "train.py").read_text()
    slow = script.replace(
        "            epoch += 1\n",
        "            epoch += 1\n            import time; time.sleep(0.2)\n",
    )
    assert slow != script
    (tmp_path / "train.py").write_text(slow)
    _, trial = await place(world, epochs=1000)
    async with started(trial, network, tmp_path) as (first, second):
        await until_async(
            "the first epoch",
            lambda: "epoch 1: accuracy" in logs(tmp_path)[0],
            show=lambda: "\n".join(logs(tmp_path)),
        )
        kill(second)
        assert await asyncio.wait_for(first.wait(), TIMEOUT_S) != 0
    assert f"the launcher on {network[1][1].address} is gone" in logs(tmp_path)[0]
