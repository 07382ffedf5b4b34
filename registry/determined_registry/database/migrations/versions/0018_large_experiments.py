"""an experiment with a hundred thousand trials: its pages, its best trial, those that have not ended"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_MEASURED = sa.text("searcher_metric_value IS NOT NULL")


def upgrade() -> None:
    op.create_index("ix_trials_experiment", "trials", ["experiment_id", "id"])
    op.create_index(
        "ix_trials_least_metric",
        "trials",
        ["experiment_id", "searcher_metric_value", "id"],
        postgresql_where=_MEASURED,
    )
    op.create_index(
        "ix_trials_greatest_metric",
        "trials",
        ["experiment_id", sa.text("(- searcher_metric_value)"), "id"],
        postgresql_where=_MEASURED,
    )
    op.create_index(
        "ix_trials_open",
        "trials",
        ["experiment_id", "id"],
        postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
    )


def downgrade() -> None:
    for name in (
        "ix_trials_open",
        "ix_trials_greatest_metric",
        "ix_trials_least_metric",
        "ix_trials_experiment",
    ):
        op.drop_index(name, "trials")
