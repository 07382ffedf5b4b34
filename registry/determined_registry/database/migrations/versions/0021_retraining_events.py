"""events that have a model trained again: what was seen of each, and live metrics"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_BEGUN_BY = "uq_retraining_runs_begun_by"
TS = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column(
        "retrainings",
        sa.Column("marks", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
    )
    op.add_column("retraining_runs", sa.Column("begun_by", UUID(as_uuid=True), nullable=True))
    op.create_unique_constraint(_BEGUN_BY, "retraining_runs", ["begun_by"])
    op.create_table(
        "live_metrics",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("retraining_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("reported_at", TS, server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_live_metrics"),
        sa.ForeignKeyConstraint(
            ["retraining_id"],
            ["retrainings.id"],
            name="fk_live_metrics_retraining_id_retrainings",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_live_metrics_name", "live_metrics", ["retraining_id", "name", "id"])
    op.create_index(
        "ix_experiments_completed",
        "experiments",
        ["end_time"],
        postgresql_where=sa.text("state = 'COMPLETED'"),
    )


def downgrade() -> None:
    op.drop_index("ix_experiments_completed", "experiments")
    op.drop_table("live_metrics")
    op.drop_column("retrainings", "marks")
    op.drop_constraint(_BEGUN_BY, "retraining_runs")
    op.drop_column("retraining_runs", "begun_by")
    # An older service cannot tell it; it changes nothing but a page in Prefect.
    op.execute("DELETE FROM prefect_outbox WHERE starts_with(entity, 'retraining:')")
    # An older service refuses a plan with a field that it does not know.
    op.execute("UPDATE retrainings SET plan = plan - 'on'")
