"""A container: a process of this machine with its own process ids and mounts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.kubernetes.standin.objects import now

CONTAIN = Path(__file__).with_name("contain.py")
PATH = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Order:
    """``stage``: an empty directory that mounts are made ready in."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    stage: str
    binds: list[Mount] = field(default_factory=list)
    shm_bytes: int | None = None
    uid: int | None = None
    gid: int | None = None
    groups: list[int] = field(default_factory=list)


class Container:
    """``why``: the reason and the words of an end that the exit code does not tell."""

    def __init__(self, order: Order, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._main: int | None = None
        self.log = folder / "log"
        self.began_at = ""
        self.ended_at = ""
        self.code: int | None = None
        self.why: tuple[str, str] | None = None

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "order.json"
        path.write_text(json.dumps(asdict(self._order)))
        told = os.open(self._folder / "failure", os.O_WRONLY | os.O_CREAT, 0o600)
        users = [] if os.geteuid() == 0 else ["--user", "--map-current-user"]
        # Descriptor 3 is for contain.py, which closes it when the program begins.
        shell = ["/bin/sh", "-c", 'exec "$@" 3>"$0"', str(self._folder / "failure")]
        namespaces = [
            "unshare",
            *users,
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*shell, *namespaces, sys.executable, "-P", str(CONTAIN), str(path)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        os.close(told)
        self.began_at = now()

    async def wait(self) -> int:
        """The exit code; 128 and more for a signal."""
        assert self._process is not None
        code = await self._process.wait()
        self.code = code if code >= 0 else 128 - code
        self.ended_at = self.ended_at or now()
        # The second is what determined_tasks.mounts could not mount.
        places = (self._folder / "failure", Path(self._order.stage) / "failure")
        failure = "".join(place.read_text() for place in places if place.exists())
        if failure and self.why is None:
            self.why = ("StartError", failure)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """To the main process. As in any container, one without a handler ignores all but SIGKILL."""
        target = self._process.pid if number == signal.SIGKILL and self._process else self.main
        if target is not None and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)

    def kill(self, reason: str | None = None, message: str = "") -> None:
        if self.code is None and reason is not None:
            self.why = (reason, message)
        self.signal(signal.SIGKILL)

    @property
    def main(self) -> int | None:
        """The main process, as this machine numbers it; None: it is not there yet."""
        if self._main is None and self._process is not None:
            pid = self._process.pid
            with contextlib.suppress(OSError, LookupError):
                self._main = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return self._main

    async def run_inside(self, argv: list[str]) -> AsyncIterator[tuple[int, bytes] | int]:
        """Runs a program beside the main one: pieces of its output with 1 or 2, at last its exit code."""
        main = self.main
        assert main is not None
        users = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(main), *users, "--mount", "--pid"),
            *("env", "-i", *(f"{key}={value}" for key, value in self._order.env.items()), *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        for number, data in ((1, out), (2, err)):
            if data:
                yield number, data
        code = process.returncode or 0
        yield code if code >= 0 else 128 - code
