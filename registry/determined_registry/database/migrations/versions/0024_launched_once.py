"""launches that are sent twice make one task"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_INDEX = "uq_tasks_owner_id_idempotency_key"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("idempotency_key", sa.Text(), nullable=True))
    op.create_index(
        _INDEX,
        "tasks",
        ["owner_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index(_INDEX, "tasks")
    op.drop_column("tasks", "idempotency_key")
