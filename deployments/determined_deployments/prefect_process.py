"""``python -m determined_deployments.prefect_process <host> <port>``: Prefect's server in this process.

`prefect server start` would keep a second interpreter beside it. Settings come from the environment
(``PREFECT_…``), as always; ``PREFECT_SERVER_DATABASE_MIGRATE_ON_START`` must be off. With the single argument
``migrate`` it migrates the database and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from determined.common import lean_jsonschema

if TYPE_CHECKING:
    from fastapi import FastAPI

# While the server is built nearly nothing is garbage: looking for it as often as usual costs a
# quarter of the time that takes.
WHILE_STARTING = (50_000, 50, 100)

TURN_S = 0.5
# Any constants will do, so long as nothing else in Prefect's database locks the same ones.
_MIGRATION_LOCK = 0x70726566 % 2**31
START_LOCK = _MIGRATION_LOCK + 1
"""The advisory lock, in Prefect's database, of the one server that starts."""

NICENESS = 10
"""Nothing waits for Prefect's view of trials, so on a busy machine the trials go first."""


def main(host: str, port: int) -> None:
    """Serves until SIGTERM or SIGINT."""
    usual = gc.get_threshold()
    gc.set_threshold(*WHILE_STARTING)

    create_app = import_server()
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Each server registers Prefect's types of blocks when it starts; of two that do so at once over
            # an empty database one fails, and ends.
            async with _in_turn(START_LOCK):
                await super().startup(sockets)
            # Existing objects stay: later collections need not visit them.
            gc.freeze()
            gc.set_threshold(*usual)
            os.nice(NICENESS)

    migration = start_migration()
    config = uvicorn.Config(
        create_app(),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        # Open requests and event streams of browsers and agents do not hold up `cluster-down`.
        timeout_graceful_shutdown=3,
    )
    _, status = os.waitpid(migration, 0)
    if status:
        raise SystemExit(os.waitstatus_to_exitcode(status))
    Server(config).run()


def import_server() -> Callable[[], FastAPI]:
    """Prefect's own ``create_app``."""
    lean_jsonschema.import_it()
    from prefect.server.api.server import create_app

    return create_app


def start_migration() -> int:
    """Brings Prefect's tables up to date in a fork; returns its pid.

    It runs while the server is built, and the memory of a hundred migrations and their tool ends with it.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        migrate()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def migrate() -> None:
    """Brings Prefect's tables up to date. Any number of processes may call it at once: they take turns."""
    asyncio.run(_migrate_in_turn())


async def _migrate_in_turn() -> None:
    from prefect.server.database import provide_database_interface

    async with _in_turn(_MIGRATION_LOCK):
        await provide_database_interface().create_db()


@contextlib.asynccontextmanager
async def _in_turn(key: int) -> AsyncIterator[None]:
    """Holds the advisory lock ``key`` of Prefect's database within the block, and waits for it before."""
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface

    engine = await provide_database_interface().engine()
    # The lock has its own connection: it must outlive the transactions of the block. And no transaction of
    # its own, for which an index that is made concurrently would wait, while this waits for the index.
    async with engine.connect() as connection:
        guard = await connection.execution_options(isolation_level="AUTOCOMMIT")
        # Asked for again and again, because Prefect ends statements that take long.
        mine = sa.text("SELECT pg_try_advisory_lock(:key)")
        for pause in itertools.repeat(TURN_S):
            if (await guard.execute(mine, {"key": key})).scalar_one():
                break
            await asyncio.sleep(pause)
        try:
            yield
        finally:
            # The connection goes back to the pool, and lives on with its locks.
            await guard.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": key})


if __name__ == "__main__":
    if sys.argv[1:] == ["migrate"]:
        migrate()
        raise SystemExit
    main(sys.argv[1], int(sys.argv[2]))
