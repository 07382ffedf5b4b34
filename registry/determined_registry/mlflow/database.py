"""Connections to our Postgres that read only."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import sqlalchemy as sa

from determined_registry.database import seen
from determined_registry.mlflow import configured
from determined_registry.mlflow.service import invalid, seen_of_request

SCHEME = "determined+postgresql"
_SHOWN = "shown"
STATEMENT_MS = 60_000
"""A statement that takes longer is stopped: nobody waits for its answer any more."""


class Reader:
    """Statements that read, each by itself. One pool for each process, made after its fork."""

    def __init__(self, store_uri: str) -> None:
        self._url = _database_url(store_uri)
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self._pid = 0

    @property
    def engine(self) -> sa.Engine:
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                options = f"-c default_transaction_read_only=on -c statement_timeout={STATEMENT_MS}"
                self._engine = sa.create_engine(
                    self._url,
                    pool_size=5,
                    max_overflow=15,
                    pool_pre_ping=True,
                    isolation_level="AUTOCOMMIT",
                    json_deserializer=orjson.loads,
                    hide_parameters=True,
                    connect_args={"options": options, "application_name": "determined-mlflow"},
                )
                self._pid = os.getpid()
            return self._engine

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        """One that shows what the user sees whose request is answered."""
        wanted = seen_of_request.get()
        with self.engine.connect() as conn:
            if wanted is not None or conn.info.get(_SHOWN) is not None:
                # Until it is done, nobody knows.
                conn.info[_SHOWN] = _SHOWN
                if wanted is None:
                    conn.exec_driver_sql(seen.WIDEN)
                else:
                    conn.exec_driver_sql(seen.NARROW, seen.parameters(wanted))
                conn.info[_SHOWN] = wanted
            yield conn

    def all(self, statement: str, given: Mapping[str, Any] | None = None) -> list[Any]:
        """Every row of the answer. ``statement`` has its values as ``:name``. Raises MlflowException."""
        _check(given)
        with self._connection() as conn:
            return list(conn.execute(sa.text(statement), given or {}))

    def first(self, statement: str, given: Mapping[str, Any] | None = None) -> Any:
        """The first row of the answer; None: there is none. Raises MlflowException."""
        _check(given)
        with self._connection() as conn:
            return conn.execute(sa.text(statement), given or {}).first()


def _check(given: Mapping[str, Any] | None) -> None:
    """Postgres takes texts without NUL alone: what holds one is nobody's name, and no request to repeat."""
    for value in (given or {}).values():
        texts = value if isinstance(value, list) else (value,)
        if any(isinstance(text, str) and "\0" in text for text in texts):
            raise invalid("a text of the request holds the character NUL: leave it out")


def _database_url(store_uri: str) -> str:
    """The URL with its driver. An address without a host stands for the database of the server's service."""
    url = sa.make_url(store_uri.replace(SCHEME, "postgresql", 1))
    if not url.host and not url.database and not url.query:
        url = sa.make_url(configured.current().db_url)
    return url.set(drivername="postgresql+psycopg").render_as_string(False)
