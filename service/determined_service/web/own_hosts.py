"""The host names of the service's own pages, MLflow's and Prefect's: nothing else is served there, so nothing
else shares their origin."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from determined.common.wire.mlflow import HOME
from determined_service.base import hosts
from determined_service.base.pages import FRONT_HOME, PREFECT_HOME, is_own_host
from determined_service.base.settings import Settings

_HOMES = (
    (hosts.FRONT, FRONT_HOME, "the service's own pages"),
    (hosts.MLFLOW, HOME, "MLflow's pages"),
)


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
            for label, home, whose in _HOMES:
                if is_own_host(self._settings, label, text) and not _is_below(home, scope["path"]):
                    answer = Response(f"not found: here are {whose} alone, below {home}/\n", 404)
                    if scope["path"] == "/":
                        answer = RedirectResponse(f"{home}/", 307)
                    await answer(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def _is_below(home: str, path: str) -> bool:
    return path == home or path.startswith(f"{home}/")


def _below(folder: str, scope: Scope) -> Scope:
    raw = scope.get("raw_path") or scope["path"].encode()
    return {**scope, "path": folder + scope["path"], "raw_path": folder.encode() + raw}
