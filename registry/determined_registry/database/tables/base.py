"""Helpers that all tables share."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import UUID

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def now() -> sa.DefaultClause:
    """The time of the transaction, as a column's default."""
    return sa.DefaultClause(sa.text("now()"))


def json(text: str) -> sa.DefaultClause:
    """Fixed JSON as a column's default."""
    return sa.DefaultClause(sa.text(f"'{text}'::jsonb"))


TS = sa.DateTime(timezone=True)
Uuid = UUID(as_uuid=True)
