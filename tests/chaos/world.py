"""A local cluster with two agents or three, each behind a separate proxy, and the actions on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import psutil
import psycopg

from determined.common.api import Session, errors
from determined_deployments.agent.launchers.fork_server.plans import WITHOUT_TORCH
from determined_deployments.local import daemon, plan
from determined_deployments.local.up import cluster_up
from determined_tasks.containers.settings import LABEL_ALLOCATION
from determined_tasks.context_dir import ALLOCATIONS
from determined_tasks.supervision import LegRecord
from tests import container_engine
from tests.chaos.nodes import Nodes
from tests.chaos.proxy import Proxy
from tests.local_cluster import LocalCluster
from tests.waiting import until

COMPONENTS = ("postgres", "prefect", "service")
SLOTS = 2
DOCKER_S = 30.0
DEFAULT, CONTAINERS, PODS = "default", "containers", "pods"
CONFIGURATION = "".join(
    ["resource_pools:\n", *(f"  - pool_name: {pool}\n" for pool in (DEFAULT, CONTAINERS, PODS))]
)


@dataclass
class AgentProcess:
    """One agent, as its own machine would run it."""

    name: str
    folder: Path
    proxy: Proxy
    settings: dict[str, Any]
    env: dict[str, str]
    engine: container_engine.Engine | None = None
    """Whose containers its trials run in; None: they are processes."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    """When, by the monotonic clock."""
    # Faults of different lanes may meet here.
    starting: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Starts it unless it runs."""
        with self.starting:
            if self.process is None or self.process.poll() is not None:
                self._start()

    def _start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "agent.json"
        path.write_text(json.dumps(self.settings))
        self.started = time.monotonic()
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "determined_deployments.agent"],
                env={**self.env, "DET_AGENT_CONFIG": str(path)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def legs(self) -> list[LegRecord]:
        """The legs it has processes of."""
        found = (LegRecord.read(path) for path in (self.folder / "work" / ALLOCATIONS).glob("*"))
        return [record for record in found if record is not None]

    def containers(self, allocation_id: str | None = None) -> list[str]:
        """The names of its running containers; with ``allocation_id`` of this leg's only.

        Raises subprocess.SubprocessError when the engine is away, or stands still.
        """
        if self.engine is None:
            return []
        label = LABEL_ALLOCATION + (f"={allocation_id}" if allocation_id else "")
        return docker("ps", "--format", "{{.Names}}", "--filter", f"label={label}").split()

    def flows(self) -> list[psutil.Process]:
        """The processes that drive experiments."""
        found = []
        for path in (self.folder / "work" / "flow_runs").glob("*.json"):
            with contextlib.suppress(psutil.Error, OSError, ValueError, KeyError):
                found.append(psutil.Process(json.loads(path.read_text())["pid"]))
        return found


@dataclass
class World:
    """:meth:`up` first, :meth:`down` last. ``storage``: where checkpoints go; ``small_disk``: whether the
    folder is a separate disk, which may be filled; ``long_stops``: whether some stops last so long that
    others take them for death; ``engine``: of the second agent, whose trials run in containers and which has
    a pool of its own; ``nodes``: of the third agent, whose trials run in pods, in a pool of their own. None:
    there is no third."""

    folder: Path
    long_stops: bool = False
    engine: container_engine.Engine | None = None
    nodes: Nodes | None = None
    agents: list[AgentProcess] = field(default_factory=list)
    small_disk: bool = False
    damaged: set[str] = field(default_factory=set)
    """Checkpoints that a fault has changed."""

    def __post_init__(self) -> None:
        self.cluster = LocalCluster.in_directory(self.folder)
        self.data_dir = self.cluster.data_dir
        self.storage = self.folder / "storage"
        self.storage.mkdir()

    def up(self) -> None:
        self.small_disk = _mount(self.storage)
        given = self.folder / "pools.yaml"
        given.write_text(CONFIGURATION)
        state = cluster_up(
            self.data_dir, plan.ClusterOptions(config=str(given)), components=COMPONENTS
        )
        self.state = state
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DET_", "PREFECT_"))
        }
        # `cluster-down` uses it to find remaining processes of the cluster.
        env[daemon.MARKER] = state.marker
        env[WITHOUT_TORCH] = "1"
        for number in (1, 2) if self.nodes is None else (1, 2, 3):
            proxy = Proxy("127.0.0.1", state.master_port)
            proxy.start()
            folder = self.folder / f"agent-{number}"
            settings: dict[str, Any] = {
                "agent_id": f"agent-{number}",
                "slot_type": "cpu",
                "master_url": proxy.url,
                "agent_token": state.agent_token,
                "prefect_api_url": state.prefect_api_url,
                "prefect_auth": state.prefect_auth,
                "work_dir": str(folder / "work"),
            }
            engine = self.engine if number == 2 else None
            if number == 3 and self.nodes is not None:
                settings |= self.nodes.settings(proxy.url, self.storage) | {"resource_pool": PODS}
            elif engine is not None:
                image = container_engine.machine_image()
                settings |= {
                    "slots": SLOTS,
                    "resource_pool": CONTAINERS,
                    "launcher": "docker",
                    "container": {"images": {"cpu": image}, "harness": "mounted"},
                    # Its user is not an administrator, and names the storage of the experiments.
                    "security": {"containers": {"host_paths": ["/"]}},
                }
            else:
                settings["slots"] = SLOTS
            agent = AgentProcess(settings["agent_id"], folder, proxy, settings, env, engine)
            self.agents.append(agent)
            agent.start()
        self.cluster.env["DET_MASTER"] = state.master_url

    def down(self) -> None:
        for agent in self.agents:
            if agent.process is not None:
                agent.process.kill()
        self.cluster.end()
        if self.small_disk:
            subprocess.run(["umount", "-l", str(self.storage)], check=False)

    def heal(self) -> None:
        """End every fault: start the killed processes and resume the stopped ones."""
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    process.send_signal(signal.SIGCONT)
        self.revive()
        if self.engine is not None:
            self.engine.start()
            for name in docker("ps", "--quiet", "--filter", "status=paused").split():
                docker("unpause", name)
        if self.nodes is not None:
            self.nodes.api.heal()
        for agent in self.agents:
            agent.proxy.heal()
            agent.start()
        self.filler.unlink(missing_ok=True)
        self.activate_paused()

    def activate_paused(self) -> None:
        with self.database() as conn:
            rows = conn.execute("SELECT id FROM experiments WHERE state = 'PAUSED'").fetchall()
        with self.session() as session:
            for (number,) in rows:
                # It may have ended meanwhile.
                with contextlib.suppress(errors.BadRequestException):
                    session.post(f"/api/v1/experiments/{number}/activate")

    def revive(self) -> None:
        """Starts the components that are dead."""
        self.state = cluster_up(self.data_dir, components=COMPONENTS)
        # Another cluster on this machine may have taken a port meanwhile.
        for agent in self.agents:
            agent.proxy.port = self.state.master_port
            agent.settings["prefect_api_url"] = self.state.prefect_api_url
        self.cluster.env["DET_MASTER"] = self.state.master_url

    @property
    def pools(self) -> list[str]:
        """The pools that have agents."""
        others = {CONTAINERS: self.engine, PODS: self.nodes}
        return [DEFAULT, *(pool for pool, has in others.items() if has is not None)]

    def component(self, name: str) -> psutil.Process | None:
        record = daemon.read_pid_file(self.data_dir / "run" / f"{name}.json")
        return daemon.alive(record) if record else None

    def members(self) -> Iterator[psutil.Process]:
        """Every process of the cluster."""
        return daemon.members(self.state.marker)

    @property
    def filler(self) -> Path:
        """The file that fills the rest of the small disk."""
        return self.storage / ".filler"

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Requests as an agent may make them, past the proxies."""
        with Session(self.state.master_url, self.state.agent_token) as session:
            yield session

    @contextlib.contextmanager
    def database(self, name: str = "determined") -> Iterator[psycopg.Connection[Any]]:
        where = f"host=127.0.0.1 port={self.state.postgres_port} user=determined dbname={name}"
        with psycopg.connect(where, password=self.state.db_password, autocommit=True) as conn:
            yield conn

    def submit(self, config: str, script: str, name: str) -> None:
        """Submits, or does not: the service may be away. The results are in the database."""
        folder = self.folder / "submissions" / name
        model = folder / "model"
        model.mkdir(parents=True)
        (model / "script.py").write_text(script)
        (folder / "config.yaml").write_text(config)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.cluster.det(
                "experiment", "create", str(folder / "config.yaml"), str(model),
                check=False, timeout=60,
            )  # fmt: skip

    def open_experiments(self, pool: str | None = None) -> int:
        """Of this pool, or of all."""
        return self._count(
            "SELECT count(*) FROM experiments WHERE state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"
            " AND config #>> '{resources,resource_pool}' = coalesce(%s,"
            " config #>> '{resources,resource_pool}')",
            pool,
        )

    def open_deletions(self) -> int:
        return self._count(
            "SELECT count(*) FROM tasks WHERE kind = 'CHECKPOINT_GC' AND state = 'ACTIVE'"
        )

    def _count(self, statement: LiteralString, *given: str | None) -> int:
        with self.database() as conn:
            row = conn.execute(statement, given).fetchone()
        assert row is not None
        return int(row[0])

    def wait_for_quiet(self, seconds: float) -> None:
        """Until every experiment has ended and its garbage is collected, or AssertionError."""
        deadline = time.monotonic() + seconds
        until(
            "no experiment that goes on", self.open_experiments, seconds, equals=0, show=self.states
        )
        left = deadline - time.monotonic()
        until("no deletion that goes on", self.open_deletions, left, equals=0)

    def states(self) -> list[tuple[Any, ...]]:
        with self.database() as conn:
            return conn.execute(
                "SELECT e.id, e.name, e.state, e.reason, t.id, t.state, t.reason, a.id, a.state, a.agent_id"
                " FROM experiments e LEFT JOIN trials t ON t.experiment_id = e.id"
                " LEFT JOIN allocations a ON a.trial_id = t.id AND a.state <> 'TERMINATED'"
                " WHERE e.state NOT IN ('COMPLETED', 'CANCELED', 'ERROR') ORDER BY e.id, t.id"
            ).fetchall()


def docker(*args: str) -> str:
    """The output of the command. Raises subprocess.SubprocessError."""
    command = ["docker", *args]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=DOCKER_S
    ).stdout


def _mount(folder: Path) -> bool:
    """True if ``folder`` is a small disk now; only root may make one."""
    if os.geteuid() != 0:
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
