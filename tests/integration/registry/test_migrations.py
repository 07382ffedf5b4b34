"""The migrations make the tables' schema, once, for any number of processes at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from determined_registry.database import migrate
from determined_registry.database.tables import metadata


def tables(url: str) -> set[str]:
    engine = sa.create_engine(migrate.engine_url(url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        return set(sa.inspect(conn).get_table_names())


def test_several_processes_at_once_migrate_once(postgres_url: str) -> None:
    assert tables(postgres_url) == set()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(migrate.upgrade, [postgres_url] * 4))
    expected = {table.name for table in metadata.sorted_tables}
    assert tables(postgres_url) == expected | {migrate.VERSION_TABLE}
    engine = sa.create_engine(migrate.engine_url(postgres_url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        assert migrate.current(conn) == migrate.head()


def test_the_migrations_end_where_the_tables_are(database_url: str) -> None:
    engine = sa.create_engine(migrate.engine_url(database_url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        context = MigrationContext.configure(
            conn, opts={"version_table": migrate.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, metadata) == []


def test_down_and_up_again(database_url: str) -> None:
    from alembic import command

    engine = sa.create_engine(migrate.engine_url(database_url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        found = migrate.config()
        found.attributes["connection"] = conn
        command.downgrade(found, "base")
        conn.commit()
    assert tables(database_url) == {migrate.VERSION_TABLE}
    migrate.upgrade(database_url)
    assert "experiments" in tables(database_url)


def test_a_database_is_one_cluster(database_url: str) -> None:
    engine = sa.create_engine(migrate.engine_url(database_url), poolclass=sa.NullPool)
    insert = "INSERT INTO cluster (singleton, id) VALUES (:one, gen_random_uuid())"
    for one in (True, False):
        with engine.connect() as conn, pytest.raises(sa.exc.IntegrityError):
            conn.execute(sa.text(insert), {"one": one})
