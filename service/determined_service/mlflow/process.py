"""The process of MLflow's server: started by the first request, ended when nobody has asked for a while.

It costs 250 MB and seconds of a processor to start, so an idle cluster has none. It listens on a Unix
socket in a folder that only the service's account enters, and answers nobody without the secret. It ends
with the service, however that ends: the kernel closes the pipe that it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from determined_service.base.errors import Unavailable
from determined_service.base.settings import Settings

logger = logging.getLogger(__name__)

START_S = 180.0
"""MLflow takes 5 to 20 s to be imported, more on a machine that is at its limit."""
LOOK_S = 0.1
STOP_S = 10.0
SEEN_S = 2.0
"""In which a process that was killed is seen to be gone."""
REQUEST_S = httpx.Timeout(10.0, read=600.0, write=600.0)
CONNECTIONS = 64
LOG = "mlflow.log"
SECRET_HEADER = "x-determined-secret"


class MlflowServer:
    """One server process at most, of one service process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._secret = secrets.token_urlsafe(32)
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._client: httpx.AsyncClient | None = None
        self._folder: Path | None = None
        self._used = time.monotonic()
        self._asking = 0

    @property
    def pid(self) -> int | None:
        """The process' id while it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def spool(self) -> Path:
        """The folder of files on their way to it. It exists while the server runs."""
        return self._settings.data_dir.absolute() / "mlflow"

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of the server, which is started if it does not run and stays until the block's end.

        Raises Unavailable when it does not start.
        """
        self._asking += 1
        try:
            async with self._starting:
                if self.pid is None or self._client is None:
                    await self._start()
                found = self._client
            assert found is not None
            yield found
        finally:
            self._asking -= 1
            self._used = time.monotonic()

    async def has_ended(self, pid: int | None) -> bool:
        """True if the process ``pid`` is gone. A kill is not seen at once, so this looks for a moment."""
        process = self._process
        if process is None or process.pid != pid:
            return True
        try:
            await asyncio.wait_for(process.wait(), SEEN_S)
        except TimeoutError:
            return False
        return True

    async def end_when_idle(self, idle_s: float) -> None:
        """Loop for ever: end the process after this number of seconds without a request."""
        while True:
            left = self._used + idle_s - time.monotonic()
            await asyncio.sleep(max(left, idle_s / 10, 0.01))
            async with self._starting:
                unused = time.monotonic() - self._used >= idle_s
                if unused and not self._asking and self.pid is not None:
                    logger.info("MLflow's server ends: nobody has asked for %.0f s", idle_s)
                    await self._stop()

    async def close(self) -> None:
        """Ends the process."""
        async with self._starting:
            await self._stop()

    async def _start(self) -> None:
        await self._stop()
        folder = self._folder = Path(tempfile.mkdtemp(prefix="det-mlflow-"))
        socket = folder / "socket"
        spool = self.spool
        (spool / "tmp").mkdir(parents=True, exist_ok=True)
        logs = self._settings.data_dir.absolute() / "logs"
        log = (logs if logs.is_dir() else spool) / LOG
        # Uploads pass through its temporary folder: not in memory, where /tmp may be.
        environment = {**os.environ, "TMPDIR": str(spool / "tmp"), "PYTHONWARNINGS": "ignore"}
        environment.pop("DET_SERVICE_CONFIG", None)
        given = {
            "db_url": self._settings.mlflow_db_url or self._settings.db_url,
            "spool": str(spool),
            "storage": self._settings.checkpoint_storage or {},
            "socket": str(socket),
            "secret": self._secret,
        }
        begun = time.monotonic()
        with log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "determined_registry.mlflow.server",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(ConnectionError):
            pipe.write(json.dumps(given).encode() + b"\n")
            await pipe.drain()
        # A service without Prefect has not needed it yet, and in the event loop it would take 0.1 s.
        await asyncio.to_thread(importlib.import_module, "httpcore")
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(socket), limits=httpx.Limits(max_connections=CONNECTIONS)
            ),
            base_url="http://mlflow",
            headers={SECRET_HEADER: self._secret},
            timeout=REQUEST_S,
            trust_env=False,
        )
        try:
            await asyncio.wait_for(self._answers(), START_S)
        except (TimeoutError, ChildProcessError) as error:
            await self._stop()
            raise Unavailable(f"MLflow's server did not start; {log} says why") from error
        except BaseException:
            # Whoever asked has gone: the next one starts it again.
            await self._stop()
            raise
        logger.info("MLflow's server answers after %.1f s", time.monotonic() - begun)

    async def _answers(self) -> None:
        assert self._process is not None and self._client is not None
        while True:
            if self._process.returncode is not None:
                raise ChildProcessError
            with contextlib.suppress(httpx.HTTPError):
                if (await self._client.get("/health")).is_success:
                    return
            await asyncio.sleep(LOOK_S)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        client, self._client = self._client, None
        folder, self._folder = self._folder, None
        if client is not None:
            await client.aclose()
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), STOP_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
