"""Creates the first rows of every cluster, two users and an identity, and cleans up at a start."""

from __future__ import annotations

import datetime
import uuid

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from determined_registry.database.tables import cluster, report_streams, users
from determined_service.base import passwords
from determined_service.base.db import Database
from determined_service.base.settings import Settings

BUILT_IN_USERS = {"admin": True, "determined": False}

NO_CLUSTER = uuid.UUID(int=0)


async def bootstrap(db: Database, settings: Settings) -> uuid.UUID:
    """Create missing rows and return the cluster's id. Safe to run in several processes at once.

    A user without an entry in ``settings.bootstrap_passwords`` is made with a blank password, as
    Determined does; RuntimeError where other machines reach the service, also for one that is too short.
    """
    wanted = uuid.UUID(settings.cluster_id)
    async with db.tx() as conn:
        present = set((await conn.execute(sa.select(users.c.username))).scalars())
        for name, admin in BUILT_IN_USERS.items():
            if name in present:
                continue
            secret = settings.bootstrap_passwords.get(name)
            first = secret.get_secret_value() if secret else ""
            sent = passwords.as_sent(first)
            if passwords.is_blank(sent) and settings.is_reachable:
                raise RuntimeError(
                    f"the service listens on {settings.host}, where other machines reach it, and user {name} "
                    f"would get a blank password: give bootstrap_passwords.{name} in the service's settings"
                )
            if settings.is_reachable and (why := passwords.too_short(first)):
                raise RuntimeError(f"bootstrap_passwords.{name}: {why}")
            kept = await passwords.in_thread(passwords.store, sent)
            await conn.execute(
                insert(users)
                .values(username=name, admin=admin, password_hash=kept)
                .on_conflict_do_nothing()
            )
        # Nobody repeats a batch after a week.
        week_ago = sa.func.now() - datetime.timedelta(days=7)
        await conn.execute(sa.delete(report_streams).where(report_streams.c.updated_at < week_ago))
        await conn.execute(
            insert(cluster)
            .values(singleton=True, id=uuid.uuid4() if wanted == NO_CLUSTER else wanted)
            .on_conflict_do_nothing()
        )
        found: uuid.UUID = (await conn.execute(sa.select(cluster.c.id))).scalar_one()
        return found
