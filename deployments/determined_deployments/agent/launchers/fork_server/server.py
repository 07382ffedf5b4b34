"""The agent's side of the fork server: a tree of zygotes, kept alive, and their forks.

``root`` (the supervisors' modules only) is up in a fraction of a second; ``trial`` adds torch and the
harness, ``flow`` adds Prefect. The two are apart because importing Prefect installs log handlers and
costs every fork 5 ms. Whoever asks for a fork gets it from the warmest zygote that is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determined.common.backoff import Backoff
from determined.common.wire.prefect import PREFECT_PASSWORD
from determined_deployments.agent.launchers.base import LaunchError
from determined_deployments.agent.launchers.fork_server.zygote import ROOT
from determined_deployments.agent.launchers.processes import Child, watch

logger = logging.getLogger(__name__)

LINE_LIMIT = 64 << 20
RESTART_SECONDS = (0.2, 30.0)
LAST_WORD_SECONDS = 1.0


class ForkServerError(LaunchError):
    """The fork did not happen: the zygote ended meanwhile."""


@dataclass
class ZygotePlan:
    """A zygote that is wanted: what it imports on top of its parent.

    ``optional`` modules are skipped when they are not installed; ``env`` is set before the imports.
    ``cpu_seconds``: how much CPU time the imports may take (None: any amount).
    """

    name: str
    parent: str
    modules: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cpu_seconds: int | None = None

    def leave_out(self, module: str) -> bool:
        """Takes back a module that must not be imported before a fork. False: the zygote is given up."""
        self.modules = [item for item in self.modules if item != module]
        self.optional = [item for item in self.optional if item != module]
        return True

    def crashed(self) -> None:
        """Called when the imports have ended the zygote, which is given up."""


class _Zygote:
    """A connected, ready zygote."""

    def __init__(
        self, name: str, pid: int, base_path: list[str], writer: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self.pid = pid
        self.base_path = base_path
        self.writer = writer
        self.children: dict[int, Child] = {}
        self.waiting: dict[int, asyncio.Future[Child]] = {}

    def order(self, message: dict[str, Any]) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")


class ForkServer:
    """``async with ForkServer() as server``: starts the root zygote and keeps the wanted ones alive.

    When a zygote dies, those it forked go on and are watched; it is started again. At exit the
    zygotes end, what they forked does not.
    """

    def __init__(self, env: dict[str, str] | None = None) -> None:
        # Supervisors are forked from it, and need nothing of Prefect.
        given = os.environ if env is None else env
        self._env = {name: value for name, value in given.items() if name != PREFECT_PASSWORD}
        self._wanted: dict[str, ZygotePlan] = {}
        self._ready: dict[str, _Zygote] = {}
        self._starting: dict[str, int | None] = {}
        """Zygotes that were ordered and are not ready yet, and their process ids."""
        self._changed = asyncio.Condition()
        self._ids = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._root: asyncio.subprocess.Process | None = None

    @property
    def directory(self) -> Path:
        """The server's temporary directory; zygotes, and what they fork, begin in it."""
        return self._dir

    async def __aenter__(self) -> ForkServer:
        # A socket's path is limited to 107 bytes: not in the data directory.
        self._dir = Path(tempfile.mkdtemp(prefix="det-agent-"))
        self._socket = str(self._dir / "zygotes")
        self._server = await asyncio.start_unix_server(
            self._connected, self._socket, limit=LINE_LIMIT
        )
        self._spawn(self._keep_root())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._wanted.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for zygote in self._ready.values():
            zygote.writer.close()
        for pid in self._starting.values():
            # In the middle of its imports it would not see that nobody waits for it.
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._server.close()
        if self._root is not None and self._root.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._root.terminate()
            await self._root.wait()
        shutil.rmtree(self._dir, ignore_errors=True)

    def want(self, plan: ZygotePlan) -> None:
        """Asks for a zygote; it is started when its parent is ready, and again when it dies."""
        self._wanted[plan.name] = plan
        self._start_missing()

    def drop(self, name: str) -> None:
        """Stop a zygote. The processes forked from it keep running."""
        self._wanted.pop(name, None)
        zygote = self._ready.get(name)
        if zygote is not None:
            zygote.writer.close()

    def is_wanted(self, name: str) -> bool:
        """True if the zygote was asked for, and was neither dropped nor given up since."""
        return name in self._wanted

    def is_ready(self, name: str) -> bool:
        return name in self._ready

    async def wait_ready(self, names: Sequence[str]) -> None:
        """Returns when one of ``names`` is ready."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(name in self._ready for name in names))

    async def wait_started(
        self, name: str, timeout: float, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Returns when the zygote ``name`` is ready or not (any more) being started, after ``timeout``
        seconds, or when ``until``, which is asked at each change, is true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(
                    lambda: name in self._ready or name not in self._starting or until()
                )

    async def fork(self, names: Sequence[str], call: str, arg: dict[str, Any]) -> Child:
        """Runs ``call`` (``module:function``) with ``arg`` in a fork of the first ready zygote.

        ``arg["base_path"]`` is set to the zygote's ``sys.path``. Waits for one of ``names`` to be ready.
        Raises ForkServerError when the zygote ends before it has forked.
        """
        await self.wait_ready(names)
        zygote = next(self._ready[name] for name in names if name in self._ready)
        self._ids += 1
        future: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        zygote.waiting[self._ids] = future
        order = {
            "op": "fork",
            "id": self._ids,
            "call": call,
            "arg": {**arg, "base_path": zygote.base_path},
        }
        zygote.order(order)
        return await future

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_root(self) -> None:
        backoff = Backoff(*RESTART_SECONDS)
        while True:
            begin = asyncio.get_running_loop().time()
            self._root = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "determined_deployments.agent.launchers.fork_server.zygote",
                self._socket,
                cwd=self._dir,
                env=self._env,
                start_new_session=True,
            )
            status = await self._root.wait()
            if asyncio.get_running_loop().time() - begin > backoff.longest:
                backoff.reset()
            logger.warning("the fork server ended (%s); starting it again", status)
            await asyncio.sleep(backoff.next_delay())

    def _start_missing(self) -> None:
        for plan in self._wanted.values():
            parent = self._ready.get(plan.parent)
            if parent is None or plan.name in self._ready or plan.name in self._starting:
                continue
            self._starting[plan.name] = None
            parent.order(
                {
                    "op": "zygote",
                    "name": plan.name,
                    "modules": plan.modules,
                    "optional": plan.optional,
                    "env": plan.env,
                    "cpu_seconds": plan.cpu_seconds,
                }
            )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        zygote: _Zygote | None = None
        try:
            first = await reader.readline()
            if not first:
                return
            hello = json.loads(first)
            self._starting.pop(hello["name"], None)
            if hello["event"] == "broken":
                self._without(hello["name"], hello["module"], hello["reason"])
                return
            if hello["name"] != ROOT and hello["name"] not in self._wanted:
                return  # dropped meanwhile
            zygote = _Zygote(hello["name"], hello["pid"], hello["base_path"], writer)
            await self._announce(zygote)
            while line := await reader.readline():
                self._heard(zygote, json.loads(line))
        except asyncio.CancelledError:
            # The agent ends. asyncio's own callback would print the cancellation as an error.
            return
        finally:
            writer.close()
            if zygote is not None:
                await self._lost(zygote)
                # Later: no hot loop, whatever ends it.
                asyncio.get_running_loop().call_later(RESTART_SECONDS[0], self._start_missing)
            else:
                self._start_missing()

    async def _announce(self, zygote: _Zygote) -> None:
        async with self._changed:
            self._ready[zygote.name] = zygote
            if zygote.name == ROOT:
                self._starting.clear()  # those of an earlier root will never report
            self._changed.notify_all()
        self._start_missing()

    def _heard(self, zygote: _Zygote, event: dict[str, Any]) -> None:
        if event["event"] == "forked":
            child = zygote.children[event["pid"]] = Child(event["pid"])
            future = zygote.waiting.pop(event["id"])
            if not future.done():
                future.set_result(child)
        elif event["event"] == "starting":
            if event["name"] in self._starting:
                self._starting[event["name"]] = event["pid"]
        elif event["event"] == "exit":
            child_ended = zygote.children.pop(event["pid"], None)
            if child_ended is not None:
                child_ended.set_ended(event["status"])
            for name, pid in self._starting.items():
                if pid == event["pid"]:
                    # Its own last word comes by another connection, perhaps later.
                    asyncio.get_running_loop().call_later(
                        LAST_WORD_SECONDS, self._crashed, name, event["pid"], event["status"]
                    )

    def _crashed(self, name: str, pid: int, status: int) -> None:
        """A zygote ended during its imports, without a message."""
        if self._starting.get(name) != pid:
            return
        del self._starting[name]
        plan = self._wanted.pop(name, None)
        if plan is not None:
            plan.crashed()
        self._spawn(self._tell_waiting())
        code = os.waitstatus_to_exitcode(status)
        logger.warning("the fork server %s ended with %s during its imports", name, code)

    async def _tell_waiting(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _lost(self, zygote: _Zygote) -> None:
        async with self._changed:
            if self._ready.get(zygote.name) is zygote:
                del self._ready[zygote.name]
        if zygote.name in self._wanted:
            logger.warning("the fork server %s ended; starting it again", zygote.name)
        for future in zygote.waiting.values():
            if not future.done():
                future.set_exception(ForkServerError(f"the zygote {zygote.name} ended"))
        for child in zygote.children.values():
            self._spawn(watch(child))
        if zygote.name == ROOT and self._root is not None:
            # Not only disconnected: no orphan may linger.
            with contextlib.suppress(ProcessLookupError):
                os.kill(zygote.pid, signal.SIGKILL)

    def _without(self, name: str, module: str, reason: str) -> None:
        """Goes on without a module that must not be imported before a fork."""
        plan = self._wanted.get(name)
        if plan is None:
            return
        logger.info("%s is not imported before forks of %s: %s", module, name, reason)
        if not plan.leave_out(module):
            del self._wanted[name]
        self._spawn(self._tell_waiting())
