"""A real local cluster for the tests: started once, through the command that users type."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from determined.common.api import Session, authentication
from determined.common.api.patience import patiently
from determined.experimental.client import ExperimentState, Trial
from determined_deployments.agent import leg_limits
from determined_deployments.agent.launchers.fork_server.plans import WITHOUT_TORCH
from determined_deployments.local import daemon, databases, postgres
from determined_deployments.local import state as states
from determined_deployments.local.layout import Layout
from determined_tasks import leg_groups
from determined_tasks.leg_groups import LegGroup
from tests.fork_server import fork_server
from tests.memory_folder import memory_folder
from tests.waiting import TIMEOUT_S, until

DET = [sys.executable, "-m", "determined.cli"]
MODULES = (
    *("determined.cli.*", "determined.common.*", "determined.expconf.*", "httpx", "rich.table"),
    *("determined_deployments.deploy", "determined_deployments.local"),
)
"""What most commands import."""


@dataclass
class LocalCluster:
    """A data directory with a cluster in it, and `det` pointed at that cluster."""

    data_dir: Path
    env: dict[str, str]
    _sessions: dict[tuple[str, str], Session] = field(default_factory=dict, repr=False)

    @classmethod
    def in_directory(cls, folder: Path, *, torch: bool = False) -> LocalCluster:
        """``torch``: whether its agent imports that beforehand, as a user's does."""
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DET_")},
            "DET_DATA_DIR": str(folder / "data"),
            "DET_DEBUG_CONFIG_PATH": str(folder / "config"),
            "HOME": str(folder / "home"),
            "COLUMNS": "200",
        }
        if not torch:
            env[WITHOUT_TORCH] = "1"
        (folder / "home").mkdir(parents=True, exist_ok=True)
        return cls(folder / "data", env)

    @classmethod
    @contextlib.contextmanager
    def running(
        cls, env: dict[str, str] | None = None, config: str | None = None, *, torch: bool = False
    ) -> Iterator[LocalCluster]:
        """One that is up within the block, in a temporary directory; ``env`` is added to its own,
        ``config`` is its cluster configuration, ``torch`` as of :meth:`in_directory`.

        Not under pytest's temporary folder: another pytest session closes that to other users, and as root
        Postgres runs as one.
        """
        with memory_folder("determined-test-") as folder:
            cluster = cls.in_directory(Path(folder), torch=torch)
            cluster.env.update(env or {})
            try:
                options = []
                if config is not None:
                    path = Path(folder) / "given.yaml"
                    path.write_text(config)
                    options = ["--config", str(path)]
                cluster.up(*options)
                yield cluster
            finally:
                cluster.end()

    def up(self, *args: str) -> subprocess.CompletedProcess[str]:
        """With one agent for any number of pools, unless ``args`` say otherwise."""
        options = ("--slots", "2", "--agents", "1", *args)
        return self.det("deploy", "local", "cluster-up", *options, timeout=TIMEOUT_S)

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.det("deploy", "local", "cluster-down", timeout=TIMEOUT_S)

    def end(self) -> None:
        """Ends every process at once, where the data go, too. `cluster-down` takes seconds, because it ends
        running processes in order; tests/integration/test_local_cluster.py tests it.
        """
        layout = Layout(self.data_dir)
        state = states.load(layout)
        if state is None:
            return
        # By this signal Postgres ends at once, and with SIGKILL it would leave its shared memory behind.
        if (server := daemon.running(layout, postgres.NAME)) is not None:
            daemon.stop(server, ((signal.SIGQUIT, 5.0),))
        # Killed processes may have started others meanwhile.
        while left := list(daemon.members(state.marker)):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, TIMEOUT_S)
        # No agent starts here again, which would sweep them.
        for home in leg_groups.MOUNT.rglob(leg_limits.home_name(layout.agent_work)):
            LegGroup([home]).end()

    def collections(self) -> int:
        """The number of collections of checkpoints that have not ended."""
        state = states.load(Layout.of(self.data_dir))
        assert state is not None
        with psycopg.connect(databases.url(state, "determined")) as connection:
            statement = (
                "SELECT count(*) FROM tasks WHERE kind = 'CHECKPOINT_GC' AND state = 'ACTIVE'"
            )
            row = connection.execute(statement).fetchone()
        assert row is not None
        return int(row[0])

    def det(
        self,
        *args: str,
        check: bool = True,
        timeout: float = TIMEOUT_S,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `det`; a failure shows both streams."""
        env = {**self.env, **(env or {})}
        settings = {name: value for name, value in env.items() if name.startswith("PYTHON")}
        server = fork_server(sys.executable, MODULES, tuple(sorted(settings.items())))
        done = server.run([*DET[1:], *args], env, cwd, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(
                f"det {' '.join(args)} ended with {done.returncode}\n"
                f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            )
        return done

    def begin_here(self, folder: Path, *args: str) -> tuple[subprocess.Popen[str], str]:
        """`det run --here` with ``args`` in the folder, once its program has printed "begun"; its task."""
        process = subprocess.Popen(
            [*DET, "run", "--here", *args],
            cwd=folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background job ignores the signal, and so would this process.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout is not None and process.stderr is not None
        task_id = process.stderr.readline().split()[-1]
        assert process.stdout.readline() == "begun\n", process.stderr.read()
        return process, task_id

    def json(self, *args: str) -> Any:
        """The parsed output of a command with --json."""
        return json.loads(self.det(*args, "--json").stdout)

    def submit(self, folder: Path, config: str, **files: str) -> int:
        """Writes ``config`` and ``files`` (``name_py="…"`` is name.py) and submits; the experiment's id."""
        model = folder / "model"
        model.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (model / f"{stem}.{suffix}").write_text(text)
        path = folder / "config.yaml"
        path.write_text(config)
        done = self.det("flow", "run", str(path), str(model), "--detach")
        return int(done.stdout.split()[-1])

    def session(self) -> Session:
        """A client of the user `determined`, logged in without a file in the home of the tests' user."""
        record = json.loads((self.data_dir / "cluster.json").read_text())
        where = (record["master_url"], record["passwords"]["determined"])
        if where not in self._sessions:
            token = authentication.new_token(where[0], "determined", where[1])
            self._sessions[where] = Session(where[0], token)
        return self._sessions[where]

    def password(self) -> str:
        """Of the user `determined`."""
        record = json.loads((self.data_dir / "cluster.json").read_text())
        return str(record["passwords"]["determined"])

    def wait(self, experiment_id: int, timeout: float = TIMEOUT_S) -> str:
        """Waits for the end; the experiment's state."""

        def ended() -> str | None:
            state = self.state(experiment_id)
            return state if ExperimentState[state].terminal else None

        show = functools.partial(self.logs, experiment_id)
        return until(f"the end of experiment {experiment_id}", ended, timeout, show=show)

    def state(self, experiment_id: int) -> str:
        """The experiment's, without STATE_; waits for a service that is away, as users' programs do."""
        found = self._get(f"/api/v1/experiments/{experiment_id}")["experiment"]["state"]
        return str(found).removeprefix("STATE_")

    def describe(self, experiment_id: int) -> dict[str, Any]:
        rows = self.json("experiment", "describe", str(experiment_id))
        return dict(rows[0] if isinstance(rows, list) else rows)

    def trials(self, experiment_id: int) -> list[dict[str, Any]]:
        rows = self._get(f"/api/v1/experiments/{experiment_id}/trials", {"limit": -1})["trials"]
        return [{**row, "state": row["state"].removeprefix("STATE_")} for row in rows]

    def reported(self, trial_id: int, group: str) -> list[int]:
        """The steps of the trial's reports, "training" or "validation"."""
        rows = Trial(trial_id, self.session()).iter_workloads()
        return [row["totalBatches"] for row in rows if row["kind"] == group]

    def _get(self, path: str, params: dict[str, Any] | None = None) -> Any:
        return patiently(lambda: self.session().get(path, params=params))

    def logs(self, experiment_id: int) -> str:
        return self.det("experiment", "logs", str(experiment_id)).stdout

    def wait_for_lines(self, experiment_id: int, word: str, count: int = 1) -> list[str]:
        """Wait for ``count`` lines of the log with ``word`` and return them."""

        def logs() -> str:
            # The command fails until the trial exists.
            return self.det("experiment", "logs", str(experiment_id), check=False).stdout

        def found() -> list[str] | None:
            # Run the command only when the log may have the lines, because it takes half a second.
            if sum(word in line for line in self._written(experiment_id)) < count:
                return None
            lines = [line for line in logs().splitlines() if word in line]
            return lines if len(lines) >= count else None

        return until(f"{count} lines with {word!r}", found, show=logs)

    def _written(self, experiment_id: int) -> Iterator[str]:
        """The lines of all logs, without the command's prefixes."""
        for trial in self.trials(experiment_id):
            for entry in self.session().stream(f"/api/v1/trials/{trial['id']}/logs"):
                yield from entry["log"].splitlines()
