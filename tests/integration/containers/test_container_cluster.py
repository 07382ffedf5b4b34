"""Agents started by hand beside a local cluster, whose trials run in containers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from determined_tasks.containers.settings import LABEL_AGENT
from determined_tasks.context_dir import ALLOCATIONS
from determined_tasks.supervision import LegRecord
from tests import container_engine, ssh_server
from tests.chaos.proxy import Proxy
from tests.local_cluster import DET, LocalCluster
from tests.waiting import TIMEOUT_S, until

POOL = "containers"
POOLS = "resource_pools: [{pool_name: default}, {pool_name: containers}, {pool_name: by-prefect}]\n"
TRAIN = """
import os, time, determined as det
with det.core.init() as core:
    for step in range(int({steps})):
        print("step", step, flush=True)
        core.train.report_training_metrics(step + 1, {{"loss": 1.0}})
        time.sleep(0.1)
    core.train.report_validation_metrics({steps}, {{"loss": 1.0}})
"""
WAIT = """\
        while step == 20 and not os.path.exists("/gate/open"):
            time.sleep(0.02)
"""
SEARCH = """
name: in containers
entrypoint: python3 train.py
resources: {resource_pool: containers}
hyperparameters: {x: {type: categorical, vals: [1, 2, 3, 4]}}
searcher: {name: grid, metric: loss, max_length: {batches: 1}}
max_restarts: 2
"""
SINGLE = SEARCH.replace("grid", "single").replace("{type: categorical, vals: [1, 2, 3, 4]}", "1")
GANG_SCRIPT = Path(__file__).parents[1] / "gangs/ddp_losses.py"
GANG = """
name: gang in containers
entrypoint: python3 -m determined.launch.torch_distributed -- python3 train.py
resources: {resource_pool: containers, slots_per_trial: 2}
searcher: {name: single, metric: loss, max_length: {batches: 10}}
max_restarts: 1
"""


@pytest.fixture(scope="module")
def cluster(engine: None) -> Iterator[LocalCluster]:
    with LocalCluster.running(config=POOLS) as made:
        yield made


class Agent:
    """An agent process; ``command`` becomes it."""

    def __init__(self, cluster: LocalCluster, name: str, command: list[str]) -> None:
        self.name = name
        self._cluster = cluster
        self._command = command
        self.work_dir = cluster.data_dir / "agents" / name
        self._log = cluster.data_dir / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._cluster.env, stdout=log, stderr=log
            )
        seen = self._log.read_text().count("registered as")
        until(
            f"{self.name} is registered",
            lambda: self._log.read_text().count("registered as") > seen,
            show=self._log.read_text,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def containers(self) -> list[str]:
        return container_engine.containers(f"{LABEL_AGENT}={self.name}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(TIMEOUT_S)


@contextlib.contextmanager
def agents(cluster: LocalCluster, *names: str) -> Iterator[list[Agent]]:
    options = ["--type", "docker", "--pool", POOL, "--artificial-slots", "1"]
    image = ["--image", container_engine.machine_image(), "--harness", "mounted"]
    image += ["--allow-host-path", tempfile.gettempdir()]
    started: list[Agent] = []
    try:
        for name in names:
            command = [*DET, "agent", "start", "--name", name, *options, *image]
            started.append(Agent(cluster, name, command))
        yield started
    finally:
        for agent in started:
            agent.stop()
            for name in agent.containers():
                container_engine.remove(name)


def losses(output: str) -> dict[int, str]:
    """The output of a gang, by step; of a repeated step the last."""
    return {int(step): loss for step, loss in re.findall(r"loss (\d+) (\S+)\n", output)}


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, str]:
    """The losses of two processes of this machine without a cluster."""
    command = [sys.executable, "-m", "determined.launch.torch_distributed", "--nproc_per_node=2"]
    ran = subprocess.run(
        [*command, "--", sys.executable, str(GANG_SCRIPT)],
        env={name: value for name, value in os.environ.items() if not name.startswith("DET_")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    found = losses(ran.stdout)
    assert sorted(found) == list(range(1, 11))
    return found


INSIDE = """
import socket, determined as det
with det.core.init() as core:
    names = [name for _, name in socket.if_nameindex()]
    print("master", det.get_cluster_info().master_url, "by", *sorted(names))
    print("gateway", socket.gethostbyname("host.docker.internal"))
    core.train.report_validation_metrics(1, {"loss": 1.0})
"""


def test_trials_in_a_bridge_reach_the_service_and_each_other(
    cluster: LocalCluster, undisturbed: dict[int, str], tmp_path: Path
) -> None:
    """As on another machine than the service's: containers have a separate network."""
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(container_engine.bridge())
        if isinstance(found, str):
            pytest.skip(found)
        address, network = found
        engine = stack.enter_context(container_engine.own(network=network))
        if isinstance(engine, str):
            pytest.skip(engine)
        facts = json.loads((cluster.data_dir / "cluster.json").read_text())
        proxy = Proxy("127.0.0.1", facts["master_port"], host_here=address)
        proxy.start()
        far = replace(
            cluster,
            env={
                **cluster.env,
                "DET_MASTER": proxy.url,
                "DET_AGENT_TOKEN": facts["agent_token"],
                "DOCKER_HOST": engine.host,
            },
        )
        stack.enter_context(agents(far, "far", "farther"))
        experiment = cluster.submit(tmp_path / "one", SINGLE, train_py=INSIDE)
        assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
        said = cluster.logs(experiment)
        assert f"master {proxy.url} by eth0 lo\n" in said, said
        assert f"gateway {address}" in said
        # The containers of a gang meet at their addresses in the bridge.
        gang = cluster.submit(tmp_path / "gang", GANG, train_py=GANG_SCRIPT.read_text())
        assert cluster.wait(gang) == "COMPLETED", cluster.logs(gang)
        said = cluster.logs(gang)
        assert losses(said) == undisturbed, said
        network = address.rpartition(".")[0]
        chiefs = re.findall(r"rank \d of 2 chief (\S+) (\S+)\n", said)
        assert len({name for _, name in chiefs}) == 2
        assert {chief.rpartition(".")[0] for chief, _ in chiefs} == {network}
        until("no container is left", lambda: not container_engine.containers())


def test_prefects_command_starts_an_agent(cluster: LocalCluster) -> None:
    record = cluster.data_dir / "cluster.json"

    facts = json.loads(record.read_text())
    env = {
        **cluster.env,
        "PREFECT_API_URL": f"{facts['prefect_url']}/api",
        "PREFECT_API_AUTH_STRING": facts["prefect_auth"],
    }
    cluster.env, before = env, cluster.env
    try:
        options = ["--type", "determined-docker", "--pool", "by-prefect", "--name", "three"]
        command = [sys.executable, "-m", "prefect", "worker", "start", *options]
        agent = Agent(cluster, "three", command)
        try:
            (row,) = [row for row in cluster.json("agent", "list") if row["id"] == "three"]
            assert row["resourcePools"] == ["by-prefect"]
        finally:
            agent.stop()
    finally:
        cluster.env = before


# From here on there is one agent, then a second one, and the last test kills the first.


@pytest.fixture(scope="module")
def one(cluster: LocalCluster) -> Iterator[Agent]:
    with agents(cluster, "one") as (made,):
        yield made


@pytest.fixture(scope="module")
def two(cluster: LocalCluster) -> Iterator[Agent]:
    with agents(cluster, "two") as (made,):
        yield made


def test_a_container_outlives_its_agent_and_the_next_one_has_it(
    cluster: LocalCluster, one: Agent, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    mount = f"bind_mounts: [{{host_path: {gate}, container_path: /gate}}]"
    script = TRAIN.format(steps=40).replace("        time.sleep(0.1)\n", WAIT)
    experiment = cluster.submit(tmp_path, SINGLE + mount, train_py=script)
    cluster.wait_for_lines(experiment, "step 20")
    (name,) = one.containers()
    # As systemd does when it ends a service: the supervisor, too.
    one.kill()
    (record,) = map(LegRecord.read, (one.work_dir / ALLOCATIONS).iterdir())
    assert record is not None
    psutil.Process(record.supervisor.pid).kill()
    assert one.containers() == [name]
    one.start()
    assert one.containers() == [name]
    (gate / "open").touch()
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    (trial,) = cluster.trials(experiment)
    assert trial["restarts"] == 0
    lines = [line for line in cluster.logs(experiment).splitlines() if "step " in line]
    assert [line.rpartition("step ")[2] for line in lines] == [str(i) for i in range(40)]
    until("no container is left", lambda: not one.containers())


SERVE = """
import http.server, os, determined as det
with det.core.init() as core:
    core.train.report_training_metrics(1, {"loss": 0.5})
    core.train.report_validation_metrics(1, {"loss": 1.0})
    where = os.environ["DET_LISTEN_HOST"], 18265
    http.server.HTTPServer(where, http.server.SimpleHTTPRequestHandler).serve_forever()
"""
PORT = "environment: {proxy_ports: [{proxy_port: 18265}]}\n"


def proxied(cluster: LocalCluster, path: str, wanted: str) -> None:
    """Returns when a task's server has answered with ``wanted``."""
    session = cluster.session()
    headers = {"Authorization": f"Bearer {session.token}"}

    def ask() -> bool:
        found = httpx.get(session.master + path, headers=headers, timeout=TIMEOUT_S)
        # Until then it says what it waits for.
        assert found.status_code in (200, 502), found.text
        return found.status_code == 200 and wanted in found.text

    until(f"{wanted} at {path}", ask)


def task_of(cluster: LocalCluster, experiment: int) -> str:
    trials = until("the trial", lambda: cluster.trials(experiment))
    return str(trials[0]["taskId"])


def test_tasks_that_people_start(cluster: LocalCluster, one: Agent, tmp_path: Path) -> None:
    """Commands, a trial's page, a TensorBoard of its curves, and a shell with and without sshd."""
    ssh_server.require()
    (tmp_path / "context").mkdir()
    (tmp_path / "context/a.txt").write_text("of the context\n")
    (tmp_path / "mount").mkdir()
    (tmp_path / "mount/b.txt").write_text("of the machine\n")
    here = ["--config", f"resources={{resource_pool: {POOL}, slots: 0}}"]
    files = ["-c", str(tmp_path / "context")]
    mount = ["-v", f"{tmp_path / 'mount'}:/mnt/b"]
    said = cluster.det("cmd", "run", *here, *files, *mount, "cat", "a.txt", "/mnt/b/b.txt")
    assert said.stdout == "of the context\nof the machine\n"
    asked = "cat a.txt || pwd -P; exit 5"
    given = ["--config", "work_dir=/tmp", "--", "sh", "-c", asked]
    said = cluster.det("cmd", "run", *here, *given, check=False)
    assert (said.returncode, said.stdout) == (5, "/tmp\n"), said.stderr

    experiment = cluster.submit(tmp_path, SINGLE + PORT, train_py=SERVE)
    proxied(cluster, f"/proxy/{task_of(cluster, experiment)}/", "train.py")
    board = cluster.det("tensorboard", "start", "-d", *here, str(experiment)).stdout.strip()
    proxied(cluster, f"/proxy/{board}/data/runs", "trial")
    cluster.det("tensorboard", "kill", board)
    cluster.det("experiment", "kill", str(experiment))

    image = container_engine.machine_image(container_engine.SSH_SERVER)
    given = ["--config", f"environment.image={image}"]
    shell = cluster.det("shell", "start", "-d", *here, *files, *given).stdout.strip()
    opened = cluster.det("shell", "open", shell, "--", "cat a.txt; exit 7", check=False)
    assert (opened.returncode, opened.stdout) == (7, "of the context\n"), opened.stderr
    bare = cluster.det("shell", "start", "-d", *here, *files).stdout.strip()
    typed = subprocess.run(
        [*DET, "shell", "open", bare],
        env=cluster.env,
        input="cat a.txt; exit 8\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert typed.returncode == 8 and "of the context" in typed.stdout, typed
    assert "no sshd is installed here" in typed.stderr
    cluster.det("shell", "kill", shell, bare)
    until("no container is left", lambda: not one.containers())


def test_a_program_of_this_directory_and_one_beside_it(
    cluster: LocalCluster, one: Agent, tmp_path: Path
) -> None:
    """Files go into a container and come back; det exec enters it, also with another supervisor."""
    (tmp_path / "wait.sh").write_text(
        "echo new > made.txt; echo begun; while [ ! -e go ]; do sleep 0.1; done; exit 7\n"
    )
    run, task_id = cluster.begin_here(tmp_path, "--pool", POOL, "--", "sh", "wait.sh")
    script = "cat made.txt; echo $DET_RESOURCES_TYPE ${DET_SESSION_TOKEN-none}"
    done = cluster.det("exec", task_id, "--", "sh", "-c", script)
    assert done.stdout == "new\ndocker-container none\n"

    [folder] = (one.work_dir / ALLOCATIONS).glob(f"{task_id}.*")
    before = LegRecord.read(folder)
    assert before is not None
    psutil.Process(before.supervisor.pid).kill()

    def taken_over() -> bool:
        record = LegRecord.read(folder)
        return record is not None and record.supervisor != before.supervisor

    until("another supervisor is there", taken_over)
    cluster.det("exec", task_id, "--", "touch", "go")
    _, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 7, err
    assert "made.txt (new)" in err and (tmp_path / "made.txt").read_text() == "new\n"
    until("no container is left", lambda: not one.containers())


def left_in_the_engine() -> list[str]:
    """All containers, networks and volumes of the engine."""
    listings = (["ps", "--all", "--quiet"], ["network", "ls", "--quiet"], ["volume", "ls", "-q"])
    return [
        subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout
        for words in listings
    ]


def test_a_gang_in_containers_of_two_agents_goes_on_after_one_is_killed(
    cluster: LocalCluster, one: Agent, two: Agent, undisturbed: dict[int, str], tmp_path: Path
) -> None:
    before = left_in_the_engine()
    held = GANG + "environment: {environment_variables: [HELD=1]}\n"
    experiment = cluster.submit(tmp_path, held, train_py=GANG_SCRIPT.read_text())
    cluster.wait_for_lines(experiment, "held 5", 2)
    (first,), (second,) = one.containers(), two.containers()
    assert first != second
    subprocess.run(["docker", "kill", second], check=True, capture_output=True)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    said = cluster.logs(experiment)
    assert losses(said) == undisturbed, said
    (trial,) = cluster.trials(experiment)
    assert trial["restarts"] == 1
    found = cluster.session().get(f"/api/v1/trials/{trial['id']}")["trial"]["legs"]
    killed, last = found
    assert killed["reason"].endswith("on agent two")
    assert killed["endTime"] <= last["startTime"], "both parts end before the next gang starts"
    for leg in found:
        assert [node["agentId"] for node in leg["nodes"]] == ["one", "two"]
    until("no container is left", lambda: not one.containers() and not two.containers())
    assert left_in_the_engine() == before


def test_a_search_over_two_agents_survives_the_end_of_one_with_its_containers(
    cluster: LocalCluster, one: Agent, two: Agent, tmp_path: Path
) -> None:
    experiment = cluster.submit(tmp_path, SEARCH, train_py=TRAIN.format(steps=20))
    until("both agents have a container", lambda: one.containers() and two.containers())
    (name,) = one.containers()
    one.kill()
    subprocess.run(["docker", "kill", name], check=True, capture_output=True)
    assert cluster.wait(experiment) == "COMPLETED", cluster.logs(experiment)
    trials = cluster.trials(experiment)
    assert [trial["state"] for trial in trials] == ["COMPLETED"] * 4
    until("no container is left", lambda: not one.containers() and not two.containers())
