"""The host names of MLflow's and Prefect's pages: the service serves nothing else there, so nothing else
shares their origin."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from determined.common.wire.mlflow import HOME
from determined_service.base import hosts
from determined_service.base.pages import PREFECT_HOME, is_own_host
from determined_service.base.settings import Settings


class OwnHosts:
    """ASGI middleware; see the module's docstring."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            text = host.decode("latin-1")
            if is_own_host(self._settings, hosts.PREFECT, text):
                scope = _below(PREFECT_HOME, scope)
            elif is_own_host(self._settings, hosts.MLFLOW, text) and not _is_mlflow(scope["path"]):
                answer = Response("not found: here are MLflow's pages alone, below /mlflow/\n", 404)
                if scope["path"] == "/":
                    answer = RedirectResponse(f"{HOME}/", 307)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _is_mlflow(path: str) -> bool:
    return path == HOME or path.startswith(f"{HOME}/")


def _below(folder: str, scope: Scope) -> Scope:
    raw = scope.get("raw_path") or scope["path"].encode()
    return {**scope, "path": folder + scope["path"], "raw_path": folder.encode() + raw}
