"""The cluster itself, its people, pools and agents, and what Prefect must still be told."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

# One row: who this cluster is, so that a database keeps its identity wherever it is served from.
cluster = sa.Table(
    "cluster",
    metadata,
    sa.Column("singleton", sa.Boolean, primary_key=True),
    sa.Column("id", Uuid, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    # The cluster configuration in force, as determined.common.cluster_config.stored() makes it. NULL:
    # none was put into force yet.
    sa.Column("config", JSONB(none_as_null=True)),
    # What administrators tell all users: "message", "startTime", "endTime" and "createdTime", as in the API.
    sa.Column("message", JSONB(none_as_null=True)),
    sa.CheckConstraint("singleton", name="one_row"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("username", sa.Text, nullable=False, unique=True),
    sa.Column("display_name", sa.Text),
    # A slow hash of the client's password, which the client has already hashed (docs/inside/security.md).
    # NULL: no login.
    sa.Column("password_hash", sa.Text),
    sa.Column("admin", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("active", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("remote", sa.Boolean, nullable=False, server_default=sa.false()),
    # {"agentUid", "agentGid", "agentUser", "agentGroup"}: the account on agents that the user is linked with.
    sa.Column("agent_user_group", JSONB(none_as_null=True)),
    sa.Column("modified_at", TS, nullable=False, server_default=now()),
)

user_sessions = sa.Table(
    "user_sessions",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    # SHA-256 of the bearer token: a stolen table lets nobody in.
    sa.Column("token_hash", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    sa.Column("expires_at", TS, nullable=False),
    # When its token was last sent, to the hour.
    sa.Column("seen_at", TS, nullable=False, server_default=now()),
    # An access token (docs/operate/users.md): no login opened it, and a logout does not end it.
    sa.Column("is_access_token", sa.Boolean, nullable=False, server_default=sa.false()),
    # The rest belongs to access tokens.
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("read_only", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("revoked_at", TS),
    # The one workspace that it is good for; NULL: all that its user sees.
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True),
    sa.Index("ix_user_sessions_user", "user_id", "seen_at"),
)

# Addresses that log a browser in at the service's pages: each is good once, and ends with the session that it
# was made from.
page_tickets = sa.Table(
    "page_tickets",
    metadata,
    # SHA-256 of the ticket, and of the pages that it opens.
    sa.Column("ticket_hash", sa.Text, primary_key=True),
    sa.Column(
        "session_id",
        sa.ForeignKey("user_sessions.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)

pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("worker_type", sa.Text, nullable=False, server_default="determined-process"),
    # Bumped when a run waits in the Prefect work pool, so that agents ask Prefect now, not at
    # their next poll.
    sa.Column("prefect_poll_seq", sa.BigInteger, nullable=False, server_default="0"),
    # It is in the cluster configuration no more; agents and ended experiments still name it.
    sa.Column("removed", sa.Boolean, nullable=False, server_default=sa.false()),
    # Its work pool in Prefect was paused because the pool was removed, not by a person.
    sa.Column("prefect_paused", sa.Boolean, nullable=False, server_default=sa.false()),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("resource_pool", sa.ForeignKey("pools.name"), nullable=False),
    sa.Column("host", sa.Text, nullable=False, server_default=""),
    # Where ports of its tasks are reached, and nowhere else; "" of one that has not said it.
    sa.Column("address", sa.Text, nullable=False, server_default=""),
    sa.Column("version", sa.Text, nullable=False, server_default=""),
    sa.Column("slot_type", sa.Text, nullable=False, server_default="cpu"),
    # What experiments may ask for: {"gpu": "a100", ...}
    sa.Column("labels", JSONB, nullable=False, server_default=json("{}")),
    # Programs of kinds of tasks that it has not, with what installs them: {"jupyterlab": "pip …"}
    sa.Column("lacks", JSONB, nullable=False, server_default=json("{}")),
    # What its containers get: {"capabilities", "devices", "host_paths", "is_root"}; null: it has none.
    sa.Column("container_rights", JSONB, nullable=True),
    # What experiments have installed there: {"<experiment>": bytes}
    sa.Column("package_bytes", JSONB, nullable=False, server_default=json("{}")),
    # A new value at each start of the agent process.
    sa.Column("session", Uuid, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("registered_at", TS, nullable=False, server_default=now()),
    sa.Column("last_heartbeat", TS, nullable=False, server_default=now()),
    # "ended": its process has said so; until it registers again. "hung_up": its connection broke; until it
    # speaks again. None of them gets new work.
    sa.Column("away", sa.Text),
)

slots = sa.Table(
    "slots",
    metadata,
    sa.Column("agent_id", sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("slot_id", sa.Integer, primary_key=True, autoincrement=False),
    # {"type": "cpu"|"cuda", "uuid": ..., "brand": ...}
    sa.Column("device", JSONB, nullable=False, server_default=json("{}")),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    # Its agent says that it is about to go.
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
    # Of an agent that stands for several machines: the one that the slot is of.
    sa.Column("machine", sa.Text),
)

# Machines that an administrator has taken out of use, of agents that stand for several: they stay so when
# they leave and come back. ``draining``: what runs there may finish.
disabled_machines = sa.Table(
    "disabled_machines",
    metadata,
    sa.Column("agent_id", sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("machine", sa.Text, primary_key=True),
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
)

# What Prefect must still be told, in order per entity. Written in the transaction that changes
# the state, delivered after it: Prefect may be away and nothing is lost or told twice.
prefect_outbox = sa.Table(
    "prefect_outbox",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    # "task:<id>", "experiment:<id>" or "retraining:<run>": deliveries to one entity keep their order.
    sa.Column("entity", sa.Text, nullable=False, index=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", JSONB, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("last_error", sa.Text),
)
