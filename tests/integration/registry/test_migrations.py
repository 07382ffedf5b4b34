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


def test_what_the_release_before_held_is_in_uncategorized(database_url: str) -> None:
    """50 experiments of three owners, and one of each other thing that lies in a workspace now."""
    from alembic import command

    engine = sa.create_engine(migrate.engine_url(database_url), poolclass=sa.NullPool)
    with engine.connect() as conn:
        given = migrate.config()
        given.attributes["connection"] = conn
        command.downgrade(given, "0046")
        conn.commit()
    assert "workspaces" not in tables(database_url)
    with engine.begin() as conn:
        conn.execute(
            sa.text(
                "INSERT INTO users (username) SELECT 'u' || n FROM generate_series(1, 3) AS n"
                " ON CONFLICT DO NOTHING"
            )
        )
        conn.execute(
            sa.text(
                """
                INSERT INTO experiments (state, name, config, owner_id)
                SELECT 'COMPLETED', 'e' || n, '{}', u.id
                FROM generate_series(1, 50) AS n JOIN users u ON u.username = 'u' || (n % 3 + 1)
                """
            )
        )
        owner = "(SELECT id FROM users WHERE username = 'u1')"
        for statement in (
            f"INSERT INTO models (name, owner_id) VALUES ('m', {owner})",
            f"INSERT INTO templates (name, config, owner_id) VALUES ('t', '{{}}', {owner})",
            f"INSERT INTO pipelines (name, owner_id, plan, state) VALUES ('p', {owner}, '{{}}', 'FAILED')",
            "INSERT INTO tasks (id, kind, owner_id, state, job_id, project_id)"
            f" VALUES ('c', 'COMMAND', {owner}, 'COMPLETED', gen_random_uuid(), 1)",
            f"INSERT INTO tasks (id, kind, owner_id) VALUES ('1.a', 'TRIAL', {owner})",
        ):
            conn.execute(sa.text(statement))
        before = conn.execute(sa.text("SELECT id, name, owner_id FROM experiments ORDER BY id"))
        known = before.all()
    migrate.upgrade(database_url)
    with engine.begin() as conn:
        after = conn.execute(sa.text("SELECT id, name, owner_id FROM experiments ORDER BY id"))
        assert after.all() == known and len(known) == 50
        where = sa.text(
            """
            SELECT w.id, w.name, w.immutable, p.id, p.name, p.immutable, count(*)
            FROM experiments e JOIN projects p ON p.id = e.project_id
            JOIN workspaces w ON w.id = p.workspace_id GROUP BY 1, 2, 3, 4, 5, 6
            """
        )
        assert conn.execute(where).all() == [
            (1, "Uncategorized", True, 1, "Uncategorized", True, 50)
        ]
        for table in ("models", "templates", "pipelines"):
            assert conn.execute(sa.text(f"SELECT workspace_id FROM {table}")).all() == [(1,)]
        found = conn.execute(sa.text("SELECT id, workspace_id, project_id FROM tasks ORDER BY id"))
        assert found.all() == [("1.a", None, None), ("c", 1, 1)]
        # A cluster that goes on makes the next ones beside it.
        made = sa.text("INSERT INTO workspaces (name) VALUES ('vision') RETURNING id")
        assert conn.scalar(made) == 2
