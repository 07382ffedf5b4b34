"""``python -m determined_registry.mlflow.server``: MLflow's server as the service starts it.

One line of JSON on its standard input says what it needs
(:class:`~determined_registry.mlflow.configured.Configuration`); it listens on a Unix socket of the
service's, answers requests that carry the secret and no others, and ends when its standard input does,
which the kernel closes with the service, however that ends.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
from typing import Any
from urllib.parse import unquote

from determined.common.wire import no_telemetry
from determined.common.wire.mlflow import BODY_FILE_HEADER, TAKES_PATH_HEADER
from determined_registry.mlflow import configured
from determined_registry.mlflow.by_path import ByPath

SECRET_HEADER = b"x-determined-secret"


def _prepare() -> None:
    """MLflow reads its environment when it is imported."""
    from determined_registry.mlflow.database import SCHEME

    uri = f"{SCHEME}:///"
    os.environ.update(
        {
            "_MLFLOW_SERVER_FILE_STORE": uri,
            "_MLFLOW_SERVER_REGISTRY_STORE": uri,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": uri,
            # The service stands before it and looks at hosts, origins and users.
            "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **no_telemetry.VARIABLES,
            "MLFLOW_TRACKING_URI": uri,
            "MLFLOW_REGISTRY_URI": uri,
        }
    )


class Guarded:
    """ASGI middleware: only the service is answered, in the name of the user whom it names."""

    def __init__(self, app: Any, secret: str) -> None:
        self._app = app
        self._secret = secret.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from determined_registry.database.seen import NOTHING, read
        from determined_registry.mlflow import service

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(SECRET_HEADER, b""), self._secret):
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"ask the cluster's service\n"})
            return
        if scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            await _send_page(send, scope["method"] == "GET")
            return
        # Without the header nothing is seen: it is the service's to send.
        said = headers.get(service.SEEN_HEADER.encode())
        service.seen_of_request.set(NOTHING if said is None else read(said.decode()))
        service.pass_of_request.set(headers.get(service.PASS_HEADER.encode(), b"").decode())
        service.user_of_request.set(headers.get(service.USER_HEADER.encode(), b"").decode())
        service.service_of_request.set(headers.get(service.SERVICE_HEADER.encode(), b"").decode())
        body = unquote(headers.get(BODY_FILE_HEADER.encode(), b"").decode())
        service.body_of_request.set(body)
        takes_path = TAKES_PATH_HEADER.encode() in headers
        service.takes_path.set(takes_path)
        if takes_path:
            await ByPath(send).answer(self._app, scope, receive)
        else:
            await self._app(scope, receive, send)


async def _send_page(send: Any, with_body: bool) -> None:
    from determined_registry.mlflow import front_page

    page = front_page.page()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(page)).encode()),
        (b"cache-control", b"no-cache"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": page if with_body else b""})


def main() -> None:
    """Serves until standard input ends."""
    given = configured.Configuration(**json.loads(sys.stdin.buffer.readline()))
    configured.put(given)
    threading.Thread(target=_end_with_service, daemon=True).start()
    _prepare()
    import uvicorn
    from mlflow.server.fastapi_app import create_fastapi_app

    app = Guarded(create_fastapi_app(), given.secret)
    uvicorn.run(
        app,
        uds=given.socket,
        workers=1,
        access_log=False,
        log_level="warning",
        # What is not answered by then is the service's to say.
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
    )


def _end_with_service() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
