"""A trial over three agents, each on a separate machine (a network namespace)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined.common.wire import gate
from tests.chaos.proxy import Proxy
from tests.integration.machines import Machine, machines
from tests.local_cluster import DET, LocalCluster
from tests.outcomes import client
from tests.waiting import TIMEOUT_S, until

# Three machines are set up, and each test kills or cuts off one that trains.
pytestmark = pytest.mark.timeout(900)

EXAMPLE = Path(__file__).parents[2] / "examples/distributed"
POOLS = "resource_pools: [{pool_name: default}, {pool_name: machines}]\n"
NAMES = ("node-0", "node-1", "node-2")


class Agent:
    """`det agent start` on a machine."""

    def __init__(self, cluster: LocalCluster, name: str, machine: Machine, master: str) -> None:
        self.name = name
        self.machine = machine
        options = ["--pool", "machines", "--artificial-slots", "1", "--name", name]
        command = [*DET, "agent", "start", *options]
        record = json.loads((cluster.data_dir / "cluster.json").read_text())
        self._log = cluster.data_dir / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                machine.command(*command),
                env={
                    **cluster.env,
                    "DET_MASTER": master,
                    "DET_AGENT_TOKEN": record["agent_token"],
                },
                stdout=log,
                stderr=log,
            )

    def wait_until_ready(self) -> None:
        until(
            f"{self.name} is registered",
            lambda: "registered as" in self._log.read_text() or self.process.poll(),
            show=self._log.read_text,
        )
        assert self.process.poll() is None, self._log.read_text()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(TIMEOUT_S)


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[LocalCluster, list[Agent]]]:
    """A cluster with three agents of one slot."""
    with (
        machines(len(NAMES)) as (here, others),
        LocalCluster.running(config=POOLS) as cluster,
        contextlib.ExitStack() as stack,
    ):
        record = json.loads((cluster.data_dir / "cluster.json").read_text())
        # The service listens on loopback only.
        proxy = Proxy("127.0.0.1", record["master_port"], host_here=here)
        proxy.start()
        agents = []
        for name, machine in zip(NAMES, others, strict=True):
            agents.append(Agent(cluster, name, machine, proxy.url))
            stack.callback(agents[-1].stop)
        for agent in agents:
            agent.wait_until_ready()
        yield cluster, agents


def submit(cluster: LocalCluster, folder: Path, held: bool = False) -> int:
    """The example on three machines, with a checkpoint after each second epoch. ``held``: its first leg waits
    in the fifth epoch for the end, and its second one in the seventh."""
    folder.mkdir(exist_ok=True)
    config = yaml.safe_load((EXAMPLE / "distributed.yaml").read_text())
    config["resources"] = {"slots_per_trial": 3, "resource_pool": "machines"}
    # Each step of three processes takes turns on the few cores: a quarter of the steps will do.
    config["hyperparameters"]["global_batch_size"] = 120
    # Three nodes on one machine: idle threads that poll for work take its cores from busy threads.
    config["environment"] = {"environment_variables": ["OMP_NUM_THREADS=1"]}
    script = (EXAMPLE / "train.py").read_text()
    changed = (
        script.replace(
            "            epoch += 1\n",
            "            epoch += 1\n"
            "            import os, time\n"
            "            print('pid', os.getpid(), 'epoch', epoch, flush=True)\n"
            "            leg = int(os.environ['DET_ALLOCATION_ID'].rpartition('.')[2])\n"
            f"            while {held} and (leg, epoch) in ((1, 5), (2, 7)):\n"
            "                time.sleep(0.05)\n",
        )
        .replace(
            # Else its sums over three ranks are in another order in the first step after each start.
            "DistributedDataParallel(model)",
            "DistributedDataParallel(model, find_unused_parameters=True)",
        )
        .replace(
            "            # Every process asks",
            "            if is_chief and epoch % 2 == 0:\n"
            "                save(core_context, model, optimizer, epoch)\n"
            "            # Every process asks",
        )
    )
    assert changed.count("save(core_context, model, optimizer, epoch)") == 4
    assert "find_unused_parameters" in changed
    return cluster.submit(folder, yaml.safe_dump(config), train_py=changed)


def losses(cluster: LocalCluster, experiment_id: int) -> dict[int, float]:
    (trial,) = client(cluster).get_experiment(experiment_id).get_trials()
    return {
        report.steps_completed: report.metrics["loss"] for report in trial.iter_metrics("training")
    }


def legs(cluster: LocalCluster, experiment_id: int) -> list[dict[str, Any]]:
    (trial,) = cluster.trials(experiment_id)
    found = cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
    return list(found)


def wait_until_held(cluster: LocalCluster, experiment_id: int, epoch: int) -> dict[int, int]:
    """The process of each rank, once all have come to that epoch."""

    def pids() -> dict[int, int]:
        words = rf"\[rank=(\d)\] .*pid (\d+) epoch {epoch}\b"
        found = re.findall(words, cluster.logs(experiment_id))
        return {int(rank): int(pid) for rank, pid in found}

    return until(
        f"three ranks in epoch {epoch}",
        lambda: len(found := pids()) == 3 and found,
        show=lambda: cluster.logs(experiment_id),
    )


@pytest.fixture(scope="module")
def unbroken(
    pool: tuple[LocalCluster, list[Agent]], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, float]:
    """The losses of a run that nothing disturbs."""
    cluster, agents = pool
    experiment_id = submit(cluster, tmp_path_factory.mktemp("unbroken"))
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    (leg,) = legs(cluster, experiment_id)
    assert [node["agentId"] for node in leg["nodes"]] == list(NAMES)
    assert [node["address"] for node in leg["nodes"]] == [one.machine.address for one in agents]
    found = losses(cluster, experiment_id)
    assert sorted(found) == list(range(1, 11))
    return found


def test_a_slow_node_a_killed_chief_and_a_network_that_is_cut(
    pool: tuple[LocalCluster, list[Agent]], unbroken: dict[int, float], tmp_path: Path
) -> None:
    """One trial meets all of these cases, because each leg starts three processes that import torch."""
    cluster, agents = pool
    late = agents[1].process
    late.send_signal(signal.SIGSTOP)
    experiment_id = submit(cluster, tmp_path, held=True)
    until(
        "the others waiting for it",
        lambda: "not there yet: that on agent node-1" in str(cluster.describe(experiment_id)),
        show=lambda: f"{cluster.describe(experiment_id)}\n{cluster.logs(experiment_id)}",
    )
    late.send_signal(signal.SIGCONT)
    os.kill(wait_until_held(cluster, experiment_id, 5)[0], signal.SIGKILL)
    wait_until_held(cluster, experiment_id, 7)
    agents[2].machine.unplug()
    try:
        until(
            "the end of the leg",
            lambda: legs(cluster, experiment_id)[1]["endTime"],
            show=lambda: f"{legs(cluster, experiment_id)}\n{cluster.logs(experiment_id)}",
        )
    finally:
        agents[2].machine.plug_in()
    assert cluster.wait(experiment_id) == "COMPLETED", cluster.logs(experiment_id)
    assert losses(cluster, experiment_id) == unbroken
    (trial,) = cluster.trials(experiment_id)
    assert trial["restarts"] == 1  # the loss of a machine does not count as a failure of the trial
    killed, lost, last = legs(cluster, experiment_id)
    assert "on agent node-0" in killed["reason"]
    assert lost["startTime"] >= killed["endTime"]
    assert (lost["state"], lost["nodes"][2]["agentId"]) == ("STATE_LOST", "node-2")
    assert "agent node-2 lost for" in lost["reason"]
    assert last["startTime"] >= lost["endTime"]


ASK = """
import socket, sys
for port in sys.argv[2:]:
    with socket.create_connection((sys.argv[1], int(port)), 20) as sock:
        sock.sendall(b"SSH-2.0-stranger".ljust(200))
        said = b""
        try:
            while piece := sock.recv(1000):
                said += piece
        except ConnectionResetError:
            pass
        print(said[:18])
"""


def open_to_others(machine: Machine) -> list[int]:
    """The ports that listen there at more than loopback."""
    table = subprocess.run(machine.command("cat", "/proc/net/tcp", "/proc/net/tcp6"),
                           check=True, capture_output=True, text=True).stdout  # fmt: skip
    rows = [line.split() for line in table.splitlines()]
    listening = [row[1].split(":") for row in rows if row[3] == "0A"]
    return [int(port, 16) for address, port in listening if address != "0100007F"]


def test_a_shell_on_another_machine_is_for_the_proxy_alone(
    pool: tuple[LocalCluster, list[Agent]],
) -> None:
    cluster, agents = pool
    given = ["--config", "resources={resource_pool: machines, slots: 0}"]
    shell = cluster.det("shell", "start", "-d", *given).stdout.strip()

    def enter() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*DET, "shell", "open", "--no-ssh", shell],
            env=cluster.env,
            input="echo in-$((40+2)); exit 5\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    try:
        found = enter()
        assert found.returncode == 5 and "in-42" in found.stdout, found.stderr
        (here,) = [agent for agent in agents if open_to_others(agent.machine)]
        ports = open_to_others(here.machine)
        assert len(ports) == 2
        other = next(agent for agent in agents if agent is not here).machine
        words = [sys.executable, "-c", ASK, here.machine.address, *map(str, ports)]
        asked = subprocess.run(other.command(*words), check=True, capture_output=True, text=True)
        assert asked.stdout == f"{gate.HELLO!r}\n" * 2

        here.machine.unplug()
        try:
            found = enter()
        finally:
            here.machine.plug_in()
        assert "does not reach the task's machine" in found.stderr
        found = enter()
        assert found.returncode == 5 and "in-42" in found.stdout, found.stderr
    finally:
        cluster.det("shell", "kill", shell)
