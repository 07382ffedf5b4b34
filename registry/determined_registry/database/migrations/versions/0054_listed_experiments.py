"""listed experiments: the searcher's name and direction beside the configuration, which is slow to open"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

COLUMNS: dict[str, tuple[sa.types.TypeEngine[Any], str]] = {
    "searcher_name": (sa.Text(), "config #>> '{searcher,name}'"),
    "larger_is_better": (
        sa.Boolean(),
        "coalesce(config #>> '{searcher,smaller_is_better}', 'true') = 'false'",
    ),
}


def upgrade() -> None:
    for name, (kind, value) in COLUMNS.items():
        op.add_column(
            "experiments", sa.Column(name, kind, sa.Computed(value, persisted=True), nullable=True)
        )
    op.create_index(
        "ix_experiments_listed",
        "experiments",
        ["archived", "state", "id"],
        postgresql_include=["owner_id", "project_id", "submitted_by"],
    )


def downgrade() -> None:
    op.drop_index("ix_experiments_listed", "experiments")
    for name in reversed(COLUMNS):
        op.drop_column("experiments", name)
