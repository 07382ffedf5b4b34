"""Brings a database to the newest schema: :func:`upgrade`."""

from __future__ import annotations

import functools
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from determined_registry.database import seen

VERSION_TABLE = "determined_alembic_version"
# Any constant will do, so long as nothing else in the database locks the same one.
_LOCK_KEY = 0x64657465726D696E % 2**31


def engine_url(db_url: str) -> sa.URL:
    """``postgresql://…`` with psycopg 3 as the driver."""
    return sa.make_url(db_url).set(drivername="postgresql+psycopg")


def config() -> Config:
    """Alembic's configuration; no ini file, so that it works from a wheel."""
    found = Config()
    found.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    found.set_main_option("path_separator", "os")
    return found


@functools.cache
def head() -> str:
    """The revision this code needs. The first call reads every migration."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None  # the package ships at least one migration
    return revision


def upgrade(db_url: str, revision: str = "head") -> None:
    """Migrates ``db_url`` (a libpq URL) to ``revision``.

    Any number of processes may call it at once: one migrates, the others wait for it. Raises
    sqlalchemy.exc.OperationalError when the database does not answer.
    """
    engine = sa.create_engine(engine_url(db_url), poolclass=sa.NullPool)
    # The lock has its own connection: it must outlive the migrations' transactions.
    with engine.connect() as guard, engine.connect() as connection:
        guard.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK_KEY})
        found = config()
        found.attributes["connection"] = connection
        # Who reads them meanwhile, in another process, would wait, or be refused.
        found.attributes["keeps_views"] = (
            revision == "head" and current(connection) == head() and seen.is_made(connection)
        )
        command.upgrade(found, revision)
        connection.commit()


def current(connection: sa.Connection) -> str | None:
    """The database's revision; None: never migrated."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()
