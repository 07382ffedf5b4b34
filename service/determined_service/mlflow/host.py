"""The host name of MLflow's pages: nothing else of the service is there, and so of their origin."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from determined.common.wire.mlflow import HOME
from determined_service.base.pages import mlflow_host
from determined_service.base.settings import Settings


class OwnHost:
    """Keeps all but MLflow's pages from their host name."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._host = mlflow_host(settings).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._is_here(scope) or _is_page(scope["path"]):
            await self.app(scope, receive, send)
            return
        answer = Response("not found: here are MLflow's pages alone, below /mlflow/\n", 404)
        if scope["path"] == "/":
            answer = RedirectResponse(f"{HOME}/", 307)
        await answer(scope, receive, send)

    def _is_here(self, scope: Scope) -> bool:
        host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
        return host.partition(b":")[0].lower() == self._host and bool(self._host)


def _is_page(path: str) -> bool:
    return path == HOME or path.startswith(f"{HOME}/")
