"""The first rows of every cluster."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from determined_registry.database import migrate
from determined_registry.database.tables import cluster, users
from determined_service.base import passwords
from determined_service.base.db import Database
from determined_service.base.settings import Settings
from determined_service.bootstrap import bootstrap


@pytest.fixture
def empty_url(postgres_server: str) -> str:
    from tests.integration.conftest import new_database

    url = new_database(postgres_server)
    migrate.upgrade(url)
    return url


def settings(url: str, **values: object) -> Settings:
    return Settings.model_validate({"db_url": url, "agent_token": "a", **values})


async def test_once_and_again_and_at_once(empty_url: str) -> None:
    db = Database(empty_url)
    try:
        given = settings(empty_url, bootstrap_passwords={"admin": "Secret123"})
        ids = await asyncio.gather(*(bootstrap(db, given) for _ in range(4)))
        again = settings(
            empty_url,
            bootstrap_passwords={"admin": "other"},
            cluster_id="11111111-1111-1111-1111-111111111111",
        )
        ids.append(await bootstrap(db, again))
        assert len(set(ids)) == 1
        async with db.tx() as conn:
            rows = (await conn.execute(sa.select(users).order_by(users.c.username))).all()
            assert [(row.username, row.admin) for row in rows] == [
                ("admin", True),
                ("determined", False),
            ]
            assert passwords.matches(passwords.as_sent("Secret123"), rows[0].password_hash)
            assert passwords.matches("", rows[1].password_hash)
            assert len((await conn.execute(sa.select(cluster))).all()) == 1
    finally:
        await db.close()


async def test_no_blank_password_where_others_reach_the_service(empty_url: str) -> None:
    db = Database(empty_url)
    try:
        given = {"host": "0.0.0.0", "bootstrap_passwords": {"admin": "Secret123"}}
        with pytest.raises(RuntimeError, match=r"give bootstrap_passwords\.determined in the"):
            await bootstrap(db, settings(empty_url, **given))
        async with db.tx() as conn:
            assert (await conn.execute(sa.select(users))).all() == []
    finally:
        await db.close()


async def test_the_settings_name_a_new_cluster(empty_url: str) -> None:
    db = Database(empty_url)
    wanted = "11111111-1111-1111-1111-111111111111"
    try:
        assert str(await bootstrap(db, settings(empty_url, cluster_id=wanted))) == wanted
    finally:
        await db.close()
