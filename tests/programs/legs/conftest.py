from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.programs.legs.fake_service import FakeService, archive, spec
from tests.waiting import TIMEOUT_S

# The fork server's step without the server: a process with one thread becomes the supervisor.
SUPERVISE = """
import sys, json
sys.path.pop(0)
base = list(sys.path)
from determined_tasks.leg import supervise
order = json.load(sys.stdin)
if order.pop("fork"):
    sys.exit(supervise({**order, "base_path": base}))
from pathlib import Path
from determined.common.wire.legs import LegSpec
from determined_tasks.leg import run_leg
from determined_tasks.task_environment import AgentSide
place = {**order["place"], "work_dir": Path(order["place"]["work_dir"])}
run_leg(LegSpec.from_json(order["spec"]), work_dir=place["work_dir"], place=AgentSide(**place))
"""


class LegRunner:
    """Runs legs against a fake service in separate processes."""

    def __init__(self, service: FakeService, work_dir: Path) -> None:
        self.service = service
        self.work_dir = work_dir
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self,
        files: dict[str, str | bytes],
        *,
        fork: bool = True,
        stock: bool = False,
        learn_into: Path | None = None,
        place: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **fields: Any,
    ) -> subprocess.Popen[str]:
        """``fork`` False: with a variable that only a new interpreter can honour. ``stock``: as in a process
        of a stock Prefect worker, which must not be forked. ``place``: more of the agent's settings;
        ``env``: of its supervisor's environment."""
        self.service.model_defs["d1"] = archive(files)
        if not fork:
            fields["environment_variables"] = ["PYTHONHASHSEED=1"]
        order = {
            "fork": not stock,
            "spec": spec(**fields),
            "place": {
                "work_dir": str(self.work_dir),
                "master": self.service.url,
                "token": "agent-secret",
                "agent_id": "agent-1",
                **(place or {}),
            },
            "learn_into": str(learn_into) if learn_into else None,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE],
            stdin=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "DET_AGENT_TOKEN": "agent-secret",
                "PREFECT_API_URL": "http://x",
                **(env or {}),
            },
            start_new_session=True,
        )
        self.started.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        return process

    def run(self, files: dict[str, str | bytes], **arguments: Any) -> dict[str, Any]:
        """Runs a leg to its end; the exit that was reported."""
        assert self.start(files, **arguments).wait(TIMEOUT_S) == 0
        allocation_id = arguments.get("allocation_id", "7.abc.1")
        return self.service.exits[allocation_id]

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def service() -> Iterator[FakeService]:
    service = FakeService()
    yield service
    service.close()


@pytest.fixture
def legs(service: FakeService, tmp_path: Path) -> Iterator[LegRunner]:
    runner = LegRunner(service, tmp_path / "agent")
    yield runner
    runner.close()


@pytest.fixture(params=["fork", "program"])
def fork(request: pytest.FixtureRequest) -> bool:
    """Both ways to start a Python entrypoint; they must look the same to the user."""
    return request.param == "fork"
