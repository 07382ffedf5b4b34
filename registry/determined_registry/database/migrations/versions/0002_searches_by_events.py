"""searches by events: the snapshot may be older than the last committed event"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "searches",
        sa.Column("snapshot_event_id", sa.BigInteger(), server_default="-1", nullable=False),
    )
    op.add_column("searches", sa.Column("operations_digest", sa.Text(), nullable=True))
    op.execute(
        "UPDATE searches SET snapshot_event_id = committed_event_id WHERE snapshot IS NOT NULL"
    )


def downgrade() -> None:
    # A search whose snapshot is not of its last event cannot go on under the older release.
    op.drop_column("searches", "operations_digest")
    op.drop_column("searches", "snapshot_event_id")
