"""a number for each storage of checkpoints; the account on agents that a user is linked with"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# As the service does for each new checkpoint.
_DIGEST = """
    encode(sha256(convert_to(
        ((coalesce(c.storage, e.config -> 'checkpoint_storage')
          - ARRAY['save_experiment_best', 'save_trial_best', 'save_trial_latest'])::text), 'UTF8')), 'hex')
"""


def upgrade() -> None:
    op.add_column("users", sa.Column("agent_user_group", JSONB(), nullable=True))
    op.create_table(
        "storages",
        sa.Column("id", sa.Integer(), sa.Identity(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_storages"),
        sa.UniqueConstraint("digest", name="uq_storages_digest"),
    )
    op.add_column("checkpoints", sa.Column("storage_id", sa.Integer(), nullable=True))
    op.create_foreign_key(
        "fk_checkpoints_storage_id_storages", "checkpoints", "storages", ["storage_id"], ["id"]
    )
    of = f"SELECT c.uuid, {_DIGEST} AS digest FROM checkpoints c LEFT JOIN experiments e ON e.id = c.experiment_id"
    op.execute(
        f"INSERT INTO storages (digest) SELECT DISTINCT digest FROM ({of}) AS found"
        " WHERE digest IS NOT NULL ORDER BY digest"
    )
    op.execute(
        f"UPDATE checkpoints c SET storage_id = s.id FROM ({of}) AS found JOIN storages s USING (digest)"
        " WHERE found.uuid = c.uuid"
    )


def downgrade() -> None:
    op.drop_column("checkpoints", "storage_id")
    op.drop_table("storages")
    op.drop_column("users", "agent_user_group")
