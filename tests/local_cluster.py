"""A real local cluster for the tests: started once, through the command that users type."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import TIMEOUT_S, until

DET = [sys.executable, "-m", "determined.cli"]


@dataclass
class LocalCluster:
    """A data directory with a cluster in it, and `det` pointed at that cluster."""

    data_dir: Path
    env: dict[str, str]

    @classmethod
    def in_directory(cls, folder: Path) -> LocalCluster:
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("DET_")},
            "DET_DATA_DIR": str(folder / "data"),
            "DET_DEBUG_CONFIG_PATH": str(folder / "config"),
            "HOME": str(folder / "home"),
            "COLUMNS": "200",
        }
        (folder / "home").mkdir(parents=True, exist_ok=True)
        return cls(folder / "data", env)

    @classmethod
    @contextlib.contextmanager
    def running(cls, env: dict[str, str] | None = None) -> Iterator[LocalCluster]:
        """One that is up within the block, in a temporary directory; ``env`` is added to its own.

        Not under pytest's temporary folder: another pytest session closes that to other users, and as root
        Postgres runs as one.
        """
        with tempfile.TemporaryDirectory(prefix="determined-test-") as folder:
            cluster = cls.in_directory(Path(folder))
            cluster.env.update(env or {})
            try:
                cluster.up()
                yield cluster
            finally:
                cluster.down()

    def up(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.det("deploy", "local", "cluster-up", "--slots", "2", *args, timeout=TIMEOUT_S)

    def down(self) -> subprocess.CompletedProcess[str]:
        return self.det("deploy", "local", "cluster-down", timeout=TIMEOUT_S)

    def det(
        self,
        *args: str,
        check: bool = True,
        timeout: float = TIMEOUT_S,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs `det`; a failure shows both streams."""
        done = subprocess.run(
            [*DET, *args],
            env={**self.env, **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(
                f"det {' '.join(args)} ended with {done.returncode}\n"
                f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            )
        return done

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

    def wait(self, experiment_id: int, timeout: float = TIMEOUT_S) -> str:
        """Waits for the end; the experiment's state."""
        self.det(
            "experiment", "wait", str(experiment_id), "--polling-interval", "0.2",
            check=False, timeout=timeout,
        )  # fmt: skip
        return self.describe(experiment_id)["state"].removeprefix("STATE_")

    def describe(self, experiment_id: int) -> dict[str, Any]:
        rows = self.json("experiment", "describe", str(experiment_id))
        return dict(rows[0] if isinstance(rows, list) else rows)

    def trials(self, experiment_id: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.json("experiment", "list-trials", str(experiment_id))
        return [{**row, "state": row["state"].removeprefix("STATE_")} for row in rows]

    def logs(self, experiment_id: int) -> str:
        return self.det("experiment", "logs", str(experiment_id)).stdout

    def wait_for_lines(self, experiment_id: int, word: str, count: int = 1) -> list[str]:
        """The log's lines with ``word``, once there are ``count`` of them."""

        def logs() -> str:
            # The command fails as long as there is no trial.
            return self.det("experiment", "logs", str(experiment_id), check=False).stdout

        def found() -> list[str] | None:
            lines = [line for line in logs().splitlines() if word in line]
            return lines if len(lines) >= count else None

        return until(f"{count} lines with {word!r}", found, show=logs)
