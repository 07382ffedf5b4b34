"""metric_summaries.last_time: which of several points of one step is the latest, for MLflow's clients"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("metric_summaries", sa.Column("last_time", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("metric_summaries", "last_time")
