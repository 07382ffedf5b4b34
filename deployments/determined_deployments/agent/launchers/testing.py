"""The tests that every launcher must pass; needs pytest and pytest-asyncio.

Subclass, and give a ``launcher_name`` fixture: the agent's setting ``launcher``, ``module:Class`` for one
that does not come with us::

    class TestMine(LauncherContract):
        @pytest.fixture
        def launcher_name(self): return "my_package.launcher:MyLauncher"

Jobs are calls of :mod:`testing_jobs`, which must be installed where the launcher runs them, and see
pytest's temporary directory under its own path: the tests learn there what a job does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from determined.common.wire.legs import ExitKind
from determined_deployments.agent.config import AgentConfig
from determined_deployments.agent.held import Held
from determined_deployments.agent.launchers import built_in
from determined_deployments.agent.launchers.base import (
    Call,
    Job,
    JobCommand,
    Kind,
    Launcher,
    LaunchError,
)
from determined_deployments.agent.launchers.testing_agent import no_model_definition
from determined_deployments.agent.launchers.testing_jobs import pid_namespace
from determined_tasks.context_dir import allocation_dir

JOBS = "determined_deployments.agent.launchers.testing_jobs"
SECONDS = 240.0
"""Only ends a test that would otherwise hang: far above what a busy machine needs."""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def _as_seen_here(number: int, namespace: int) -> int:
    """The id that a process of another namespace of this machine has in this one."""
    if namespace == pid_namespace("self"):
        return number
    for process in psutil.pids():
        with contextlib.suppress(OSError, ValueError):
            status = Path(f"/proc/{process}/status").read_text()
            inside = status.partition("NSpid:")[2].partition("\n")[0].split()
            if int(inside[-1]) == number and pid_namespace(str(process)) == namespace:
                return process
    raise AssertionError(f"no process {number} of the namespace {namespace} runs on this machine")


@pytest.mark.asyncio
class LauncherContract:
    """One test or more per promise of :class:`Launcher`."""

    @pytest.fixture
    def agent_config(self, launcher_name: str, tmp_path: Path) -> AgentConfig:
        return AgentConfig.model_validate(
            {
                "agent_id": "contract",
                "slots": 1,
                "master_url": "http://127.0.0.1:1",
                "agent_token": "secret",
                "work_dir": tmp_path / "work",
                "launcher": launcher_name,
            }
        )

    def make(self, config: AgentConfig) -> Launcher:
        config.work_dir.mkdir(parents=True, exist_ok=True)
        return built_in.load(config.launcher)(config, no_model_definition)

    @pytest_asyncio.fixture
    async def launcher(self, agent_config: AgentConfig) -> AsyncIterator[Launcher]:
        async with self.make(agent_config) as made:
            assert await made.adopt() == []
            await asyncio.wait_for(made.ready(), SECONDS)
            yield made

    def stay(self, launcher: Launcher, folder: Path, kind: Kind = "flow_run") -> Job:
        """A job that runs until it is told to end, by a file ``go`` in ``folder`` or by a signal."""
        folder.mkdir()
        argument: dict[str, object] = {"path": str(folder)}
        if kind == "leg":
            argument["allocation"] = str(self.leg_dir(launcher, folder.name))
        return Job(kind, folder.name, Call(f"{JOBS}:stay", argument), {"of": folder.name})

    def leg_dir(self, launcher: Launcher, allocation_id: str) -> Path:
        return allocation_dir(launcher.work_dir("leg", allocation_id), allocation_id)

    async def begun(self, folder: Path) -> psutil.Process:
        """Waits until the job runs; the process that it started."""
        await until((folder / "child").exists)
        number, namespace = map(int, (folder / "child").read_text().split())
        return psutil.Process(_as_seen_here(number, namespace))

    async def test_the_worker_is_of_the_launchers_type(self, launcher: Launcher) -> None:
        worker = launcher.worker_class()
        assert worker.type == launcher.worker_type
        assert {"env", "command"} <= set(
            worker.get_default_base_job_template()["variables"]["properties"]
        )

    @pytest.mark.parametrize("code", [0, 3])
    @pytest.mark.parametrize("kind", ["flow_run", "errand"])
    async def test_a_call_runs_and_its_exit_code_is_known(
        self, launcher: Launcher, tmp_path: Path, kind: Kind, code: int
    ) -> None:
        path = tmp_path / "said"
        call = Call(f"{JOBS}:say", {"path": str(path), "text": "é\n", "code": code})
        held = Held(launcher, await launcher.start(Job(kind, "1", call)))
        ended = await asyncio.wait_for(held.ended, SECONDS)
        assert (ended.code, ended.signal, ended.number) == (code, None, code)
        assert path.read_text() == "é\n"
        await held.clean_up()
        await held.clean_up()
        await launcher.signal(held.running, signal.SIGKILL)

    async def test_a_command_has_its_environment_and_an_empty_directory(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        script = f'test -z "$(ls -A)" && pwd > {tmp_path}/where && exit $CODE'
        command = JobCommand(["/bin/sh", "-c", script], {"CODE": "4"})
        held = Held(launcher, await launcher.start(Job("flow_run", "1", command)))
        assert (await asyncio.wait_for(held.ended, SECONDS)).code == 4
        await held.clean_up()
        where = (tmp_path / "where").read_text().strip()
        assert not os.path.exists(where)  # noqa: ASYNC240, PTH110

    async def test_what_cannot_be_started_is_a_launch_error_or_a_failure(
        self, launcher: Launcher
    ) -> None:
        """Where only the other side can know that there is no such program, it is an exit code."""
        try:
            job = Job("flow_run", "1", JobCommand(["/does/not/exist"]))
            held = Held(launcher, await launcher.start(job))
        except LaunchError as error:
            assert "/does/not/exist" in str(error)
        else:
            assert not (await asyncio.wait_for(held.ended, SECONDS)).in_order

    @pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
    async def test_a_signal_reaches_the_first_process(
        self, launcher: Launcher, tmp_path: Path, number: signal.Signals
    ) -> None:
        job = self.stay(launcher, tmp_path / "1")
        held = Held(launcher, await launcher.start(job))
        await self.begun(tmp_path / "1")
        await launcher.signal(held.running, number)
        assert (await asyncio.wait_for(held.ended, SECONDS)).in_order
        assert (tmp_path / "1" / "signal").read_text() == str(int(number))

    async def test_sigkill_ends_all_that_the_job_started(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        held = Held(launcher, await launcher.start(self.stay(launcher, tmp_path / "1")))
        child = await self.begun(tmp_path / "1")
        await launcher.signal(held.running, signal.SIGKILL)
        ended = await asyncio.wait_for(held.ended, SECONDS)
        assert (ended.code, ended.signal) == (None, 9)
        await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)

    async def test_jobs_run_side_by_side(self, launcher: Launcher, tmp_path: Path) -> None:
        folders = [tmp_path / str(number) for number in range(5)]
        started = await asyncio.gather(
            *(launcher.start(self.stay(launcher, folder)) for folder in folders)
        )
        assert len({running.identifier for running in started}) == 5
        jobs = [Held(launcher, running) for running in started]
        for folder in folders:
            await self.begun(folder)
        (folders[3] / "go").touch()
        await asyncio.wait_for(jobs[3].ended, SECONDS)
        assert [job.ended.done() for job in jobs] == [False, False, False, True, False]
        for folder in folders:
            (folder / "go").touch()
        await asyncio.wait_for(asyncio.gather(*(job.ended for job in jobs)), SECONDS)

    async def test_to_stop_waiting_does_nothing_to_the_job(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        running = await launcher.start(self.stay(launcher, tmp_path / "1"))
        await self.begun(tmp_path / "1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(launcher.wait(running), 0.1)
        (tmp_path / "1" / "go").touch()
        assert (await asyncio.wait_for(launcher.wait(running), SECONDS)).in_order

    async def test_a_leg_that_ends_by_itself_is_in_order(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        job = self.stay(launcher, tmp_path / "7.a.1", "leg")
        held = Held(launcher, await launcher.start(job))
        await self.begun(tmp_path / "7.a.1")
        await launcher.signal(held.running, signal.SIGUSR1)
        assert (await asyncio.wait_for(held.ended, SECONDS)).in_order
        await held.clean_up()
        assert not self.leg_dir(launcher, "7.a.1").exists()

    async def test_a_leg_is_rung_where_it_runs(self, launcher: Launcher, tmp_path: Path) -> None:
        job = self.stay(launcher, tmp_path / "7.a.1", "leg")
        held = Held(launcher, await launcher.start(job))
        await self.begun(tmp_path / "7.a.1")
        assert launcher.waits_for(held.running) is None, "it runs"
        assert await launcher.ring(held.running)
        await until((tmp_path / "7.a.1" / "rung").exists)
        (tmp_path / "7.a.1" / "go").touch()
        assert (await asyncio.wait_for(held.ended, SECONDS)).in_order
        assert not await launcher.ring(held.running)
        await held.clean_up()
        assert not await launcher.ring(held.running)

    async def test_a_lost_leg_stays_on_record_until_it_is_cleaned_up(
        self, agent_config: AgentConfig, tmp_path: Path
    ) -> None:
        async with self.make(agent_config) as launcher:
            await launcher.adopt()
            job = self.stay(launcher, tmp_path / "7.a.1", "leg")
            held = Held(launcher, await launcher.start(job))
            child = await self.begun(tmp_path / "7.a.1")
            await launcher.signal(held.running, signal.SIGKILL)
            ended = await asyncio.wait_for(held.ended, SECONDS)
            assert not ended.in_order
            # The code of the task has no part in it.
            assert ended.kind is ExitKind.INFRASTRUCTURE
            await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        # The agent ended before it had reported this.
        async with self.make(agent_config) as launcher:
            (running,) = await launcher.adopt()
            assert (running.kind, running.id) == ("leg", "7.a.1")
            again = Held(launcher, running)
            assert not (await asyncio.wait_for(again.ended, SECONDS)).in_order
            await again.clean_up()
        async with self.make(agent_config) as launcher:
            assert await launcher.adopt() == []
            assert not self.leg_dir(launcher, "7.a.1").exists()

    async def test_a_second_supervisor_of_a_leg_changes_nothing(
        self, launcher: Launcher, tmp_path: Path
    ) -> None:
        """The service repeats an order whose leg nobody knew."""
        job = self.stay(launcher, tmp_path / "7.a.1", "leg")
        first = Held(launcher, await launcher.start(job))
        await self.begun(tmp_path / "7.a.1")
        second = Held(launcher, await launcher.start(job))
        assert (await asyncio.wait_for(second.ended, SECONDS)).in_order
        await second.clean_up()
        assert not first.ended.done()
        (tmp_path / "7.a.1" / "go").touch()
        assert (await asyncio.wait_for(first.ended, SECONDS)).in_order
        await first.clean_up()

    async def test_jobs_go_on_when_the_agent_is_killed_and_the_next_one_has_them(
        self, agent_config: AgentConfig, tmp_path: Path
    ) -> None:
        folders = {name: tmp_path / name for name in ("7.a.1", "7.a.2", "run1", "run2")}
        launcher = self.make(agent_config)
        jobs = [
            self.stay(launcher, folder, "leg" if name[0] == "7" else "flow_run")
            for name, folder in folders.items()
        ]
        agent = self.agent_to_be_killed(agent_config, tmp_path, jobs)
        try:
            children = [await self.begun(folder) for folder in folders.values()]
            assert agent.stdout is not None
            identifiers = json.loads(await asyncio.to_thread(agent.stdout.readline))
        finally:
            agent.kill()
            agent.wait()
            assert agent.stdout is not None
            agent.stdout.close()  # the jobs hold the other end
        await asyncio.sleep(0.2)
        assert all(child.is_running() for child in children), "a job ended with its agent"
        # One of each kind ends while there is no agent.
        for name in ("7.a.2", "run2"):
            (folders[name] / "go").touch()
        await until(lambda: not any(child.is_running() for child in (children[1], children[3])))
        await until(lambda: not self.leg_dir(launcher, "7.a.2").exists())
        async with self.make(agent_config) as launcher:
            found = {running.id: running for running in await launcher.adopt()}
            # The leg reported its end and left no record; the flow run has one until it is cleaned up.
            assert set(found) - {"7.a.2"} == {"7.a.1", "run1", "run2"}
            assert found["run1"].note == {"of": "run1"}
            assert [found["7.a.1"].identifier, found["run1"].identifier] == identifiers[::2]
            held = {name: Held(launcher, running) for name, running in found.items()}
            await asyncio.wait_for(held["run2"].ended, SECONDS)
            assert not held["run1"].ended.done()
            await launcher.signal(found["run1"], signal.SIGTERM)
            await launcher.signal(found["7.a.1"], signal.SIGUSR1)
            assert (await asyncio.wait_for(held["7.a.1"].ended, SECONDS)).in_order
            await asyncio.wait_for(held["run1"].ended, SECONDS)
            assert (folders["run1"] / "signal").read_text() == str(int(signal.SIGTERM))
            assert (folders["7.a.1"] / "signal").read_text() == str(int(signal.SIGUSR1))
            for item in held.values():
                await item.clean_up()
        async with self.make(agent_config) as launcher:
            assert await launcher.adopt() == []

    async def test_leaving_the_block_ends_no_job(
        self, agent_config: AgentConfig, tmp_path: Path
    ) -> None:
        async with self.make(agent_config) as launcher:
            await launcher.adopt()
            Held(launcher, await launcher.start(self.stay(launcher, tmp_path / "1")))
            child = await self.begun(tmp_path / "1")
        await asyncio.sleep(0.2)
        assert child.is_running()
        (tmp_path / "1" / "go").touch()
        await until(lambda: not child.is_running())

    def agent_to_be_killed(
        self, config: AgentConfig, folder: Path, jobs: list[Job]
    ) -> subprocess.Popen[str]:
        settings = json.loads(config.model_dump_json(exclude_unset=True))
        settings["agent_token"] = config.agent_token.get_secret_value()
        (folder / "agent.json").write_text(json.dumps(settings))
        (folder / "jobs.json").write_text(json.dumps([asdict(job) for job in jobs]))
        module = "determined_deployments.agent.launchers.testing_agent"
        return subprocess.Popen(
            [sys.executable, "-m", module, folder / "agent.json", folder / "jobs.json"],
            stdout=subprocess.PIPE,
            text=True,
        )
