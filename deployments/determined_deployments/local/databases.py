"""The two databases, on the cluster's own or an external server: their addresses, creating and dropping
them.
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from collections.abc import Callable, Mapping

import psycopg
from psycopg import conninfo, pq, sql

from determined_deployments.local.errors import ClusterError
from determined_deployments.local.state import DATABASES, HOST, ClusterState

ROLE = "determined"
"""The superuser of the cluster's own server: `initdb` makes it, and it can never be less. Only the commands
of this package use it.
"""
OWNERS = {"prefect": "prefect_owner", "determined": "determined_owner"}
"""Each database's role, with no rights beyond that database."""
MLFLOW = "mlflow_reader"
"""The role of MLflow's server. The service, which owns the tables, grants it the right to read some."""
NAMES = DATABASES
MOVE_WAITS = "20s"
"""The longest wait for a table in use."""
OPTIONS = frozenset({"host", "port", "sslmode"})
"""Query options that both drivers (psycopg, asyncpg) accept."""
LOOK_S = 1.0
SAY_S = 15.0


def embedded_url(state: ClusterState, database: str) -> str:
    """``database`` on the cluster's own server, for the superuser."""
    return f"postgresql://{ROLE}:{state.db_password}@{HOST}:{state.postgres_port}/{database}"


def url(state: ClusterState, database: str) -> str:
    """``database`` on the cluster's server, its own (for the database's owner) or the external one."""
    if state.external_db_url:
        return on_server(state.external_db_url, database)
    login = f"{OWNERS[database]}:{state.db_passwords[database]}"
    return f"postgresql://{login}@{HOST}:{state.postgres_port}/{database}"


def mlflow_url(state: ClusterState) -> str | None:
    """Our database for MLflow's server; None: on an external server, where roles are not ours to make."""
    if state.external_db_url:
        return None
    login = f"{MLFLOW}:{state.mlflow_db_password}"
    return f"postgresql://{login}@{HOST}:{state.postgres_port}/determined"


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
    """True if the server accepts connections (it does not while it starts or recovers)."""
    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def wait(address: str, seconds: float, say: Callable[[str], None]) -> None:
    """Returns when the server at ``address`` takes connections; ``say`` hears for what it waits.

    A login that the server refuses is no reason to wait. Raises ClusterError if the server does not take
    connections for ``seconds``, or if ``address`` is not one.
    """
    until = time.monotonic() + seconds
    next_line = 0.0
    try:
        given = conninfo.conninfo_to_dict(address)
        patience = given.get("connect_timeout") or 5
        words = conninfo.make_conninfo(address, connect_timeout=patience)
    except psycopg.Error as error:
        raise ClusterError(
            f"{without_password(address)} is not an address of Postgres: {str(error).strip()}"
        ) from None
    while True:
        found = pq.PGconn.ping(words.encode())
        if found == pq.Ping.OK:
            return
        now = time.monotonic()
        why = (
            "it starts or ends" if found == pq.Ping.REJECT else "nothing there answers as Postgres"
        )
        if found == pq.Ping.NO_ATTEMPT or now >= until:
            raise ClusterError(
                f"no connection to {without_password(address)}: {_refusal(words) or why}"
            )
        if now >= next_line:
            left = until - now
            say(f"waiting for {without_password(address)}: {why}; {left:.0f} s more at most")
            next_line = now + SAY_S
        time.sleep(min(LOOK_S, until - now))


def _refusal(words: str) -> str:
    """The reason for the failed connection, as libpq says it; empty if there is one now."""
    try:
        psycopg.connect(words).close()
    except psycopg.Error as error:
        return str(error).strip()
    return ""


def ensure(address: str) -> None:
    """Creates the databases that do not exist yet, connected to the server at ``address``."""
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as connection:
            rows = connection.execute("SELECT datname FROM pg_database").fetchall()
            for name in sorted(set(NAMES) - {row[0] for row in rows}):
                # DuplicateDatabase: another process was quicker.
                with contextlib.suppress(psycopg.errors.DuplicateDatabase):
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise ClusterError(
            f"database server {without_password(address)}: {str(error).strip()}"
        ) from error


def ensure_owners(
    state: ClusterState, address: str, note: Callable[[str], None] = lambda text: None
) -> None:
    """Creates the databases and their owners on the cluster's own server, as the superuser of ``address``.

    What a cluster of an earlier release has belongs to the superuser, as whom everything ran; it is given to
    the owners, statement by statement: repeated after a crash it goes on. Raises ClusterError.
    """
    ensure(address)
    try:
        for name in NAMES:
            with psycopg.connect(
                on_server(address, name), autocommit=True, connect_timeout=10
            ) as connection:
                moved = _ensure_owner(connection, name, state.db_passwords[name])
                if name == "determined":
                    _ensure_reader(connection, state.mlflow_db_password)
            if moved:
                note(f"{moved} tables and types of {name} belong to the role {OWNERS[name]} now")
    except psycopg.Error as error:
        raise ClusterError(
            f"database server {without_password(address)}: {str(error).strip()}"
        ) from error


def _ensure_owner(
    connection: psycopg.Connection[tuple[object, ...]], database: str, password: str
) -> int:
    role = _ensure_role(connection, OWNERS[database], password)
    name = sql.Identifier(database)
    connection.execute(sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(name))
    connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name, role))
    connection.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(MOVE_WAITS)))
    found = connection.execute(_STRAYS, [OWNERS[database]]).fetchall()
    for kind, schema, thing in found:
        connection.execute(
            sql.SQL(f"ALTER {kind} {{}} OWNER TO {{}}").format(
                sql.SQL(str(thing)) if schema is None else sql.Identifier(str(schema), str(thing)),
                role,
            )
        )
    return len(found)


def _ensure_role(
    connection: psycopg.Connection[tuple[object, ...]], name: str, password: str
) -> sql.Identifier:
    role = sql.Identifier(name)
    known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name])
    if known.fetchone() is None:
        connection.execute(sql.SQL("CREATE ROLE {}").format(role))
    # Everything is set each time, which repairs changes by hand and half-done runs.
    rights = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
    statement = sql.SQL(f"ALTER ROLE {{}} {rights} PASSWORD {{}}")
    connection.execute(statement.format(role, sql.Literal(password)))
    return role


def _ensure_reader(connection: psycopg.Connection[tuple[object, ...]], password: str) -> None:
    role = _ensure_role(connection, MLFLOW, password)
    connection.execute(sql.SQL("GRANT CONNECT ON DATABASE determined TO {}").format(role))
    connection.execute(sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on").format(role))


# Objects of other owners that belong neither to the system nor to an extension. Indexes, row types and the
# sequences of columns follow their tables.
_STRAYS = """
    WITH role AS (SELECT oid FROM pg_roles WHERE rolname = %s),
    schemas AS (
        SELECT oid, nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    ),
    of_extensions AS (SELECT classid, objid FROM pg_depend WHERE deptype = 'e'),
    of_columns AS (
        SELECT objid FROM pg_depend
        WHERE classid = 'pg_class'::regclass AND refobjsubid > 0 AND deptype IN ('a', 'i')
    )
    SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
               ELSE 'TABLE' END, s.nspname, c.relname
    FROM pg_class c JOIN schemas s ON s.oid = c.relnamespace
    WHERE c.relowner <> (SELECT oid FROM role) AND c.relkind IN ('r', 'p', 'S', 'v', 'm')
      AND ('pg_class'::regclass, c.oid) NOT IN (SELECT classid, objid FROM of_extensions)
      AND NOT (c.relkind = 'S' AND c.oid IN (SELECT objid FROM of_columns))
    UNION ALL
    SELECT CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, s.nspname, t.typname
    FROM pg_type t JOIN schemas s ON s.oid = t.typnamespace
    LEFT JOIN pg_class c ON c.oid = t.typrelid
    WHERE t.typowner <> (SELECT oid FROM role)
      AND (t.typtype IN ('e', 'd') OR (t.typtype = 'c' AND c.relkind = 'c'))
      AND ('pg_type'::regclass, t.oid) NOT IN (SELECT classid, objid FROM of_extensions)
    UNION ALL
    SELECT 'ROUTINE', NULL, p.oid::regprocedure::text
    FROM pg_proc p JOIN schemas s ON s.oid = p.pronamespace
    WHERE p.proowner <> (SELECT oid FROM role)
      AND ('pg_proc'::regclass, p.oid) NOT IN (SELECT classid, objid FROM of_extensions)
    UNION ALL
    SELECT 'SCHEMA', NULL, quote_ident(s.nspname)
    FROM pg_namespace n JOIN schemas s ON s.oid = n.oid
    WHERE n.nspowner <> (SELECT oid FROM role) AND n.nspname <> 'public'
"""


def drop(address: str) -> None:
    """Drop both databases on the server at ``address``."""
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as connection:
            for name in NAMES:
                statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(statement.format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise ClusterError(
            f"database server {without_password(address)}: {str(error).strip()}"
        ) from error
