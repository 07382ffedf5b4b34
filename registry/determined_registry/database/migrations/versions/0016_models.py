"""models, their versions and aliases"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB, UUID

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("notes", sa.Text(), server_default="", nullable=False),
        sa.Column("metadata", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("labels", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("tags", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=True),
        sa.Column("request_id", UUID(as_uuid=True), nullable=True),
        sa.Column("workspace_id", sa.Integer(), server_default="1", nullable=False),
        sa.Column("archived", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("last_version", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_models_owner_id_users"),
    )
    op.create_index("uq_models_lower_name", "models", [sa.text("lower(name)")], unique=True)
    op.create_table(
        "model_versions",
        sa.Column("id", sa.Integer(), sa.Identity(always=False), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("checkpoint_uuid", UUID(as_uuid=True), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("comment", sa.Text(), server_default="", nullable=False),
        sa.Column("notes", sa.Text(), server_default="", nullable=False),
        sa.Column("metadata", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("labels", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("tags", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("source", sa.Text(), nullable=True),
        sa.Column("request_id", UUID(as_uuid=True), nullable=True),
        sa.Column("owner_id", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name="pk_model_versions"),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name="fk_model_versions_model_id_models",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"],
            ["checkpoints.uuid"],
            name="fk_model_versions_checkpoint_uuid_checkpoints",
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name="fk_model_versions_owner_id_users"
        ),
        sa.UniqueConstraint("model_id", "version", name="uq_model_versions_model_id_version"),
        sa.UniqueConstraint(
            "model_id", "request_id", name="uq_model_versions_model_id_request_id"
        ),
    )
    op.create_index("ix_model_versions_checkpoint_uuid", "model_versions", ["checkpoint_uuid"])
    op.create_table(
        "model_aliases",
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column(
            "moved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("model_id", "alias", name="pk_model_aliases"),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name="fk_model_aliases_model_id_models",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["model_id", "version"],
            ["model_versions.model_id", "model_versions.version"],
            name="fk_model_aliases_model_id_model_versions",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_model_aliases_version", "model_aliases", ["model_id", "version"])
    op.create_table(
        "model_alias_history",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=False),
        sa.Column("alias", sa.Text(), nullable=False),
        sa.Column("from_version", sa.Integer(), nullable=True),
        sa.Column("to_version", sa.Integer(), nullable=True),
        sa.Column("user_id", sa.Integer(), nullable=False),
        sa.Column(
            "moved_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name="pk_model_alias_history"),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name="fk_model_alias_history_model_id_models",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name="fk_model_alias_history_user_id_users"
        ),
    )
    op.create_index(
        "ix_model_alias_history_model_id", "model_alias_history", ["model_id", "alias", "id"]
    )
    op.create_table(
        "trial_sources",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("checkpoint_uuid", UUID(as_uuid=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("model_id", sa.Integer(), nullable=True),
        sa.Column("model_version", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("trial_id", "checkpoint_uuid", "kind", name="pk_trial_sources"),
        sa.ForeignKeyConstraint(
            ["trial_id"],
            ["trials.id"],
            name="fk_trial_sources_trial_id_trials",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"],
            ["checkpoints.uuid"],
            name="fk_trial_sources_checkpoint_uuid_checkpoints",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["model_id"],
            ["models.id"],
            name="fk_trial_sources_model_id_models",
            ondelete="SET NULL",
        ),
    )
    op.create_index("ix_trial_sources_checkpoint_uuid", "trial_sources", ["checkpoint_uuid"])


def downgrade() -> None:
    op.drop_table("trial_sources")
    op.drop_table("model_alias_history")
    op.drop_table("model_aliases")
    op.drop_table("model_versions")
    op.drop_table("models")
