"""Alembic's environment: on the connection it is given, else on ``-x db_url=postgresql://…``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context
from alembic.runtime.migration import MigrationContext

from determined_registry.database import seen
from determined_registry.database.migrate import VERSION_TABLE, engine_url, head
from determined_registry.database.tables import metadata


def run(connection: sa.Connection) -> None:
    """Runs the wanted migrations in one transaction, and makes the views of the newest tables in it."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        compare_type=True,
        compare_server_default=False,
    )
    keeps_views = context.config.attributes.get("keeps_views", False)
    with context.begin_transaction():
        if not keeps_views:
            seen.drop(connection)
        context.run_migrations()
        opts = {"version_table": VERSION_TABLE}
        reached = MigrationContext.configure(connection, opts=opts).get_current_revision()
        if not keeps_views and reached == head():
            seen.make(connection)


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    db_url = context.get_x_argument(as_dictionary=True).get("db_url")
    if not db_url:
        raise SystemExit("name the database: alembic -x db_url=postgresql://… <command>")
    engine = sa.create_engine(engine_url(db_url), poolclass=sa.NullPool)
    with engine.connect() as connection:
        run(connection)
