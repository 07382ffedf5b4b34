"""Starts the stand-in in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.kubernetes.standin.cluster import Cluster
from tests.kubernetes.standin.server import Server

BOOKMARK_SECONDS = 1.0


class StandIn:
    """``kubeconfig``: the file that leads to it. ``do`` runs a function of the cluster's where it lives::

    with running("1.33") as standin:
        standin.do(lambda cluster: cluster.add_node("a", {"nvidia.com/gpu": "4"}))
    """

    def __init__(self, version: str, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self._folder = folder
        self._version = version
        self._token = secrets.token_hex(16)
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._site: web.TCPSite | None = None

    async def start(self) -> None:
        self._cluster = Cluster(self._version, self._folder)
        self.server = Server(self._cluster, self._token, BOOKMARK_SECONDS)
        self._controllers = asyncio.create_task(self._cluster.run())
        await self._open()
        self._write_kubeconfig()

    async def _open(self) -> None:
        self._runner = web.AppRunner(self.server.application(), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._close()
        self._controllers.cancel()
        await asyncio.gather(self._controllers, return_exceptions=True)

    async def _close(self) -> None:
        self._cluster.store.break_watches()
        await self._runner.cleanup()

    def go_away(self) -> None:
        """The API server is away; nodes and controllers go on."""
        self.do(lambda cluster: self._close())

    def come_back(self) -> None:
        self.do(lambda cluster: self._open())

    def do(self, function: Callable[[Cluster], Any]) -> Any:
        async def call() -> Any:
            result = function(self._cluster)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _write_kubeconfig(self) -> None:
        cluster = {"server": f"http://127.0.0.1:{self._port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "stand-in", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": self._token}}],
            "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "admin"}}],
            "current-context": "stand-in",
        }
        self.kubeconfig.write_text(json.dumps(config))  # YAML, too

    def run_forever(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop


@contextlib.contextmanager
def running(version: str = "1.33", folder: Path | None = None) -> Iterator[StandIn]:
    """A stand-in without nodes, within the block."""
    with contextlib.ExitStack() as held:
        if folder is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="stand-in-")))
        standin = StandIn(version, folder)
        thread = threading.Thread(target=standin.run_forever, name="stand-in", daemon=True)
        thread.start()
        loop = standin.loop
        asyncio.run_coroutine_threadsafe(standin.start(), loop).result()
        try:
            yield standin
        finally:
            asyncio.run_coroutine_threadsafe(standin.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
