"""Another agent for a local cluster, with settings that `det` has no options for."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class SecondAgent:
    process: subprocess.Popen[bytes]
    work_dir: Path


@contextlib.contextmanager
def second_agent(cluster: LocalCluster, name: str, **settings: Any) -> Iterator[SecondAgent]:
    """Runs within the block. ``settings``: other ones than those of the cluster's own agent."""
    given = json.loads((cluster.data_dir / "agent.json").read_text())
    work_dir = cluster.data_dir / "agents" / name
    given |= {"agent_id": name, "work_dir": str(work_dir), **settings}
    file, log = cluster.data_dir / f"{name}.json", cluster.data_dir / f"{name}.log"
    file.write_text(json.dumps(given))
    path = os.pathsep.join(filter(None, [str(ROOT), cluster.env.get("PYTHONPATH", "")]))
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "determined_deployments.agent"],
            env={**cluster.env, "DET_AGENT_CONFIG": str(file), "PYTHONPATH": path},
            stdout=output,
            stderr=output,
        )
    try:
        until(
            f"agent {name} is registered",
            lambda: "registered as" in log.read_text() or process.poll() is not None,
            show=log.read_text,
        )
        assert process.poll() is None, log.read_text()
        yield SecondAgent(process, work_dir)
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
