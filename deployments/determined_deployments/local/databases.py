"""The two databases, on the cluster's own or an external server: their addresses, creating and dropping
them.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Mapping

import psycopg
from psycopg import sql

from determined_deployments.local.errors import ClusterError
from determined_deployments.local.state import HOST, ClusterState

ROLE = "determined"
NAMES = ("prefect", "determined")
"""The databases of Prefect's tables and of ours; neither side reads the other's."""
OPTIONS = frozenset({"host", "port", "sslmode"})
"""Query options that both drivers (psycopg, asyncpg) accept."""


def embedded_url(state: ClusterState, database: str) -> str:
    """``database`` on the cluster's own server."""
    return f"postgresql://{ROLE}:{state.db_password}@{HOST}:{state.postgres_port}/{database}"


def url(state: ClusterState, database: str) -> str:
    """``database`` on the cluster's server, its own or the external one."""
    if state.external_db_url:
        return on_server(state.external_db_url, database)
    return embedded_url(state, database)


def on_server(server_url: str, database: str) -> str:
    """``server_url`` with its database replaced."""
    parts = urllib.parse.urlsplit(server_url)
    # urlunsplit drops the // of an empty host (socket addresses): put the pieces together here.
    query = f"?{parts.query}" if parts.query else ""
    return f"postgresql://{parts.netloc}/{urllib.parse.quote(database)}{query}"


def maintenance(server_url: str) -> str:
    """The database to connect to for creating and dropping databases: the given one, else ``postgres``."""
    named = urllib.parse.urlsplit(server_url).path.strip("/")
    return server_url if named and named not in NAMES else on_server(server_url, "postgres")


def for_asyncpg(address: str) -> str:
    """The SQLAlchemy address of the same database through asyncpg (Prefect's driver)."""
    parts = urllib.parse.urlsplit(address)
    options: Mapping[str, str] = dict(urllib.parse.parse_qsl(parts.query))
    renamed = {("ssl" if k == "sslmode" else k): v for k, v in options.items()}
    query = f"?{urllib.parse.urlencode(renamed)}" if renamed else ""
    return f"postgresql+asyncpg://{parts.netloc}{parts.path}{query}"


def without_password(address: str) -> str:
    """The address without its password, for messages."""
    parts = urllib.parse.urlsplit(address)
    user, _, host = parts.netloc.rpartition("@")
    shown = f"{user.split(':')[0]}@{host}" if user else host
    return f"postgresql://{shown}{parts.path}"


def check_server_url(server_url: str) -> None:
    """Raises ClusterError unless both drivers understand the address."""
    parts = urllib.parse.urlsplit(server_url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ClusterError(
            f"--db-url: expected postgresql://user:password@host:port/, found scheme {parts.scheme!r}"
        )
    unknown = sorted(set(dict(urllib.parse.parse_qsl(parts.query))) - OPTIONS)
    if unknown:
        raise ClusterError(
            f"--db-url: option {unknown[0]!r} is not supported; allowed: {', '.join(sorted(OPTIONS))}"
        )


def server(server_url: str) -> tuple[str, str]:
    """The parts of an address that identify its server: host part and socket options, without credentials."""
    parts = urllib.parse.urlsplit(server_url)
    return parts.netloc.rpartition("@")[2], parts.query


def answers(address: str) -> bool:
    """Whether the server accepts connections (it does not while it starts or recovers)."""
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def ensure(address: str) -> None:
    """Creates the databases that do not exist yet, connected to the server at ``address``."""
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as connection:
            rows = connection.execute("SELECT datname FROM pg_database").fetchall()
            for name in sorted(set(NAMES) - {row[0] for row in rows}):
                # DuplicateDatabase: somebody else was quicker.
                with contextlib.suppress(psycopg.errors.DuplicateDatabase):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise ClusterError(
            f"database server {without_password(address)}: {str(error).strip()}"
        ) from error


def drop(address: str) -> None:
    """Drops both databases and what they hold, on the server at ``address``."""
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as connection:
            for name in NAMES:
                statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(statement.format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise ClusterError(
            f"database server {without_password(address)}: {str(error).strip()}"
        ) from error
