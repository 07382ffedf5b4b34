"""``python -m determined_service``: serves until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI

from determined_service.base.db import sqlalchemy_url
from determined_service.base.settings import Settings
from determined_service.proxy.http_protocol import HttpProtocol, receive_back

COLLECT = (5_000, 4, 200)
"""The thresholds of Python's garbage collector: larger than usual, because there are few cycles and a
collection costs a tenth of the start. Of the middle-aged objects no more than 20,000 are looked at in one go:
on a slow machine 40,000 took 20 ms."""

SWITCH_S = 0.001
"""Seconds after which a thread that computes gives way to the event loop; Python's own 5 ms add up."""


ACCEPTED_PER_TURN = 32
"""New connections in one turn of the event loop; each takes five callbacks. At uvicorn's 2,048, from which
asyncio takes both this number and :data:`QUEUE`, turns of 10,000 callbacks held up every answer for 0.1 s."""
QUEUE = 2_048
"""Connections that the system holds until they are accepted."""


class GracefulServer(uvicorn.Server):
    """Ends long polls, followed logs and downloads when it stops, instead of waiting for them. Many new
    connections at once do not hold up the answers to others."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        config.http = HttpProtocol
        config.backlog = ACCEPTED_PER_TURN
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                with listening.dup() as same:
                    same.listen(QUEUE)
        receive_back(self.config, self.server_state, self.lifespan.state)
        gc.freeze()  # also objects made by the start

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        hub = getattr(self._app.state, "hub", None)
        if hub is not None:
            hub.close()
        readers = getattr(self._app.state, "readers", None)
        if readers is not None:
            readers.end()
        await super().shutdown(sockets)


def _require_database(db_url: str) -> None:
    """Ends the process with one line when the database does not answer; the server's start would end in a
    traceback."""
    engine = sa.create_engine(sqlalchemy_url(db_url), poolclass=sa.NullPool)
    try:
        engine.connect().close()
    except sa.exc.OperationalError as error:
        raise SystemExit(
            f"error: the database of the service (db_url) does not answer: {error.orig}"
        ) from None


def main() -> None:
    """One process; settings from the file named by ``DET_SERVICE_CONFIG``."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # One says which database it looks at, each time; the other logs every call to Prefect.
    for talkative in ("alembic", "httpx"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
    gc.set_threshold(*COLLECT)
    sys.setswitchinterval(SWITCH_S)
    from determined_service.app import create_app

    settings = Settings.load()
    _require_database(settings.db_url)
    if settings.trusted_proxies:
        # The proxy to tasks, a separate process, reads it as well.
        os.environ.setdefault("FORWARDED_ALLOW_IPS", ",".join(settings.trusted_proxies))
    app = create_app(settings)
    # Existing objects stay: collections need not visit them.
    gc.freeze()
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        # Otherwise a client on this machine could claim any address, and guess passwords from each.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
    )
    GracefulServer(app, config).run()


if __name__ == "__main__":
    main()
