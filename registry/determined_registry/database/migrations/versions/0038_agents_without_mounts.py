"""agents that registered with an earlier service mount nothing for processes, and stay registered"""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        UPDATE agents g
        SET lacks = jsonb_build_object('mounts', 'its release mounts nothing for processes; upgrade it') || g.lacks
        FROM pools p WHERE p.name = g.resource_pool AND p.worker_type = 'determined-process'
        """
    )


def downgrade() -> None:
    # What they lack they say anew.
    pass
