"""How long the service's event loop is held up while it does one large thing; a tool for other benchmarks.

:class:`Service` is a service process with a probe in its loop: a timer that should come every PERIOD_S and
notes how late it is: what a request would have waited. On a busy machine mostly the machine makes it late,
so the processor time of each callback of the loop is measured, too: nothing else runs in the loop meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

PERIOD_S = 0.005
_CONFIG = "DET_SERVICE_CONFIG"


@dataclass(frozen=True)
class Stalls:
    """Milliseconds: the longest delay by the clock, and the processor time of the longest callback, which
    ``what`` names."""

    late: float
    busy: float

    what: str

    def __str__(self) -> str:
        return (
            f"loop late by {self.late:.0f} ms at most, longest callback {self.busy:.1f} ms of CPU"
        )


class Probe:
    """Measures the loop that :meth:`run` runs in."""

    def __init__(self) -> None:
        self.late = self.busy = 0.0
        self.what = ""

    def measure_callbacks(self) -> None:
        """From now on, of every loop in this process."""
        run = asyncio.Handle._run

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            used = time.thread_time() - began
            if used > self.busy:
                self.busy, self.what = used, repr(handle)

        asyncio.Handle._run = measured  # type: ignore[method-assign]

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            clock = time.monotonic()
            await asyncio.sleep(PERIOD_S)
            self.late = max(self.late, time.monotonic() - clock - PERIOD_S)

    def take(self) -> dict[str, Any]:
        """What was found since the last time, in ms."""
        found = {"late": self.late * 1000, "busy": self.busy * 1000, "what": self.what}
        self.late = self.busy = 0.0
        return found


def _serve() -> None:
    from determined_service import __main__ as service
    from determined_service import app as module

    create = module.create_app

    def probed(settings: Any) -> Any:
        app = create(settings)
        inner = app.router.lifespan_context
        probe = Probe()
        probe.measure_callbacks()

        @contextlib.asynccontextmanager
        async def lifespan(of: Any) -> Any:
            async with inner(of):
                task = asyncio.create_task(probe.run())
                yield
                task.cancel()

        async def stalls() -> dict[str, Any]:
            return probe.take()

        app.router.lifespan_context = lifespan
        app.get("/stalls")(stalls)
        return app

    module.create_app = probed
    service.main()


class Service:
    """A service on a database of its own choosing; may be killed and started again."""

    def __init__(self, db_url: str, folder: Path, **more: Any) -> None:
        with contextlib.closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = folder / "service.json"
        self.log = folder / "service.log"
        self.database = db_url
        settings = {"db_url": db_url, "port": self.port, "agent_token": "x", **more}
        self._file.write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = os.environ | {_CONFIG: str(self._file)}
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        while True:
            if self._process.poll() is not None:
                raise SystemExit(self.log.read_text())
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready").status_code == 200:
                    return
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def processes(self) -> list[psutil.Process]:
        """The service and its children."""
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        """Processor time of the service and of its children, also of those that have ended."""
        total = 0.0
        for number, process in enumerate(self.processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
                if number == 0:
                    total += times.children_user + times.children_system
        return total

    def peak_mb(self) -> list[float]:
        """The largest resident size so far, of the service and then of its children."""
        found = []
        for process in self.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                found.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        return found

    def stalls(self) -> Stalls:
        """Since the last time."""
        found = httpx.get(f"{self.url}/stalls").json()
        return Stalls(found["late"], found["busy"], found["what"])

    def client(self, user: str = "determined") -> httpx.Client:
        login = {"username": user, "password": "", "isHashed": True}
        token = httpx.post(f"{self.url}/api/v1/auth/login", json=login).json()["token"]
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=300)


@contextlib.contextmanager
def service(**more: Any) -> Iterator[Service]:
    """A service with an empty database of its own."""
    from benchmarks.database import postgres

    with postgres() as url, tempfile.TemporaryDirectory(prefix="det-bench-") as folder:
        found = Service(url, Path(folder), **more)
        found.start()
        try:
            yield found
        finally:
            found.kill()


if __name__ == "__main__":
    _serve()
