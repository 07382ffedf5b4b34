"""``python -m determined_deployments.prefect_process <host> <port>``: Prefect's server in this process.

`prefect server start` would keep a second interpreter beside it. Settings come from the environment
(``PREFECT_…``), as always.
"""

from __future__ import annotations

import gc
import socket
import sys

# While the server is built nearly nothing is garbage: looking for it as often as usual costs a
# quarter of the time that takes.
WHILE_STARTING = (50_000, 50, 100)


def main(host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    usual = gc.get_threshold()
    gc.set_threshold(*WHILE_STARTING)

    import uvicorn
    from prefect.server.api.server import create_app

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            # What is there now stays: later collections need not visit it.
            gc.freeze()
            gc.set_threshold(*usual)

    config = uvicorn.Config(
        create_app(),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        # Open requests and event streams of browsers and agents do not hold up `cluster-down`.
        timeout_graceful_shutdown=3,
    )
    Server(config).run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
