"""Our worker type in Prefect, without a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from determined.common.wire import serving
from determined.common.wire.serving import Served
from determined_deployments.agent import flow_run as flow_runs
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers.base import Exit, Running
from determined_deployments.agent.launchers.commands import run_command
from determined_deployments.agent.launchers.fork_server.forking import Forked
from determined_deployments.agent.launchers.fork_server.launcher import ForkServerLauncher
from determined_deployments.agent.launchers.fork_server.worker import (
    DeterminedProcessWorker,
    ProcessJobConfiguration,
)
from determined_deployments.agent.launchers.processes import Child
from determined_deployments.agent.prefect_side import PrefectSide
from determined_deployments.agent.relaunches import Relaunches
from determined_deployments.agent.worker import SET_DIRECTORY


class Started:
    """A flow run's job whose end the test tells."""

    identifier = f"host:{os.getpid()}"

    def __init__(self, *ended: int) -> None:
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        for status in ended:
            self.ended.set_result(Exit.of_status(status))


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_prefect_finds_the_worker_type() -> None:
    """By the entry point, as `prefect worker start --type determined-process` does."""
    code = (
        "from prefect.workers.base import BaseWorker\n"
        "print(BaseWorker.get_worker_class_from_type('determined-process').__name__)"
    )
    assert python(code) == "DeterminedProcessWorker"


def test_the_package_is_cheap_for_everybody_else() -> None:
    code = (
        "import sys, determined_deployments, determined_deployments.agent.config\n"
        "print([m for m in ('prefect', 'torch', 'sqlalchemy', 'fastapi') if m in sys.modules])"
    )
    assert python(code) == "[]"


def test_pool_template_takes_environment_and_command() -> None:
    template = DeterminedProcessWorker.get_default_base_job_template()
    assert {"env", "command"} <= set(template["variables"]["properties"])


def prepared(command: str | None = None, **deployment: Any) -> ProcessJobConfiguration:
    configuration = ProcessJobConfiguration(command=command)
    run = SimpleNamespace(id=uuid4(), name="run", flow_id=None, deployment_id=None, tags=[])
    given = SimpleNamespace(
        **{
            "id": uuid4(),
            "name": "d",
            "updated": None,
            "pull_steps": None,
            "entrypoint": None,
            "tags": [],
            **deployment,
        }
    )
    configuration.prepare_for_flow_run(run, given)  # type: ignore[arg-type]
    return configuration


@pytest.mark.parametrize(
    ("deployment", "entrypoint"),
    [
        ({"entrypoint": "package.module.flow"}, "package.module.flow"),
        ({"entrypoint": "flows/file.py:flow"}, None),
        ({"entrypoint": "package.module:flow"}, None),
        ({"entrypoint": "package.module.flow", "pull_steps": [{"git": {}}]}, None),
        ({"entrypoint": "package.module.flow", "command": "./own"}, None),
        ({"entrypoint": None}, None),
    ],
)
def test_only_module_entrypoints_are_forked(
    deployment: dict[str, Any], entrypoint: str | None
) -> None:
    configuration = prepared(**deployment)
    assert configuration.entrypoint == entrypoint
    assert UUID(configuration.env["PREFECT__FLOW_RUN_ID"] or "")


def test_the_directory_of_prefect_deploy_is_kept() -> None:
    step = {SET_DIRECTORY: {"directory": "/somewhere"}}
    configuration = prepared(entrypoint="package.module.flow", pull_steps=[step])
    assert configuration.entrypoint == "package.module.flow"
    assert configuration.directory == "/somewhere"
    for more in ([step, {"git": {}}], [{SET_DIRECTORY: {"directory": "/a", "id": "b"}}]):
        assert prepared(entrypoint="package.module.flow", pull_steps=more).entrypoint is None


async def test_run_reports_identifier_and_exit_code() -> None:
    worker = DeterminedProcessWorker(work_pool_name="default", name="agent-1")
    job = Started()

    async def launch(run: Any, configuration: Any) -> Started:
        return job

    worker.launch = launch
    started = []
    status = SimpleNamespace(started=started.append)
    run = SimpleNamespace(id=uuid4())
    task = asyncio.create_task(worker.run(run, prepared(), status))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    assert started
    assert started[0].endswith(f":{os.getpid()}")
    job.ended.set_result(Exit.of_status(3 << 8))
    assert (await task).status_code == 3


async def test_run_that_the_agent_ends_is_not_a_crash() -> None:
    worker = DeterminedProcessWorker(work_pool_name="default", name="agent-1")

    async def launch(run: Any, configuration: Any) -> Started:
        return Started(9)

    worker.launch = launch
    worker.is_stopping = lambda flow_run_id: True
    result = await worker.run(SimpleNamespace(id=uuid4()), prepared())  # type: ignore[arg-type]
    assert result.status_code == 0


async def test_a_killed_run_is_started_again_while_it_is_due() -> None:
    worker = DeterminedProcessWorker(work_pool_name="default", name="agent-1")
    relaunches = Relaunches()
    worker.goes_on = relaunches.is_due
    statuses = iter([9, 9, 0])
    run = SimpleNamespace(id=uuid4())

    async def launch(flow_run: Any, configuration: Any) -> Started:
        relaunches.started(flow_run.id)
        return Started(next(statuses))

    worker.launch = launch
    result = await worker.run(run, prepared())  # type: ignore[arg-type]
    assert result.status_code == 0
    assert list(statuses) == []


@pytest.mark.parametrize(
    ("lives", "started"),
    [
        pytest.param([9] * 30, 30, id="killed after a while, however often"),
        pytest.param([0.1] * 30, 5, id="killed at once"),
        pytest.param([0.1] * 4 + [3] + [0.1] * 30, 10, id="killed at once, but not always"),
    ],
)
def test_a_run_is_not_started_again_without_end(lives: list[float], started: int) -> None:
    now = 0.0
    relaunches = Relaunches(lambda: now)
    run, count = uuid4(), 0
    for life in lives:
        relaunches.started(run)
        count += 1
        now += life
        if not relaunches.is_due(run, Exit(signal=9)):
            break
    assert count == started


@pytest.mark.parametrize("status", [0, 1 << 8, None])
def test_a_run_that_ended_by_itself_is_not_started_again(status: int | None) -> None:
    relaunches, run = Relaunches(), uuid4()
    relaunches.started(run)
    assert not relaunches.is_due(run, Exit.of_status(status))
    assert not relaunches.is_due(uuid4(), Exit(signal=9))  # a run without a record


async def test_own_command_runs_in_a_shell() -> None:
    configuration = prepared(command='test -n "$PREFECT__FLOW_RUN_ID" && exit 4')
    child = await run_command(configuration.program())
    assert os.waitstatus_to_exitcode(await child.ended or 0) == 4


def test_a_command_runs_in_an_empty_directory_which_goes_with_it(tmp_path: Path) -> None:
    """Prefect's worker copies its working directory, which must not be the cluster's data."""
    configuration = prepared(command=f'test -z "$(ls -A)" && pwd > {tmp_path / "where"}')

    async def run() -> int | None:
        child = await run_command(configuration.program())
        return await child.ended

    assert asyncio.run(run()) == 0
    assert not Path((tmp_path / "where").read_text().strip()).exists()


def test_unknown_prefect_release_runs_the_documented_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Replaced(Exception):
        pass

    def execv(program: str, argv: list[str]) -> None:
        raise Replaced(argv[1:])

    monkeypatch.setattr(flow_runs, "CHECKED", ("0.0.",))
    monkeypatch.setattr(flow_runs.os, "execv", execv)
    with pytest.raises(Replaced) as caught:
        order = {"flow_run_id": str(uuid4()), "entrypoint": "x", "directory": None, "env": {}}
        flow_runs.run_flow_run(order)
    assert caught.value.args == (["-m", "prefect.engine"],)


async def test_a_worker_started_by_hand_runs_the_command_itself() -> None:
    worker = DeterminedProcessWorker(work_pool_name="default", name="by-hand")
    run = SimpleNamespace(id=uuid4())
    result = await worker.run(run, prepared(command="exit 5"))  # type: ignore[arg-type]
    assert result.status_code == 5
    assert result.identifier.rpartition(":")[2].isdigit()


async def test_process_that_ignores_sigterm_is_killed(config: AgentConfig) -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    await process.stdout.readline()
    child = Child(process.pid)
    task = asyncio.create_task(process.wait())
    task.add_done_callback(lambda task: child.set_ended(-task.result()))

    async def fetch(model_def_hash: str) -> bytes:
        raise AssertionError

    running: Running = Forked("flow_run", "r", "host:1", {}, child)
    held = Held(ForkServerLauncher(config, fetch), running)
    await held.end(timeout=0.2)
    assert await child.ended == 9
    assert await held.ended == Exit(signal=9)


class NoLauncher:
    """Nothing is started."""


def test_a_run_gets_its_own_token_and_never_the_agents(tmp_path: Path) -> None:
    given = {"agent_id": "a", "slots": 1, "agent_token": "secret", "work_dir": tmp_path}
    given["master_url"] = "http://127.0.0.1:9"
    side = PrefectSide(AgentConfig.model_validate(given), cast("Any", NoLauncher()))
    run = cast("Any", SimpleNamespace(id=uuid4(), parameters={"experiment_id": 7}))
    ours = "determined_flows.experiment.run_experiment"
    own = serving.sign("secret", Served(serving.EXPERIMENT, "7"))
    assert side.tokens_of(run, ours) == {"DET_RUN_TOKEN": own, "DET_AGENT_TOKEN": ""}
    nothing = {"DET_RUN_TOKEN": "", "DET_AGENT_TOKEN": ""}
    assert side.tokens_of(run, None) == nothing
    # A service of the release before knows the agents' token alone.
    side.takes_signed = False
    assert side.tokens_of(run, ours) == {"DET_RUN_TOKEN": "", "DET_AGENT_TOKEN": "secret"}
    assert side.tokens_of(run, None) == nothing


@pytest.mark.parametrize(
    ("entrypoint", "is_ours"),
    [
        ("determined_flows.experiment.run_experiment", True),
        ("determined_flows_of_mine.module.flow", False),
        ("package.module.flow", False),
        ("determined_flows/file.py:flow", False),
        (None, False),
    ],
)
def test_only_flows_of_this_project_get_a_token(entrypoint: str | None, is_ours: bool) -> None:
    assert prepared(entrypoint=entrypoint).our_flow == (entrypoint if is_ours else None)
