"""Tasks, their allocations, and what belongs to either."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, Uuid, json, metadata, now

# A task is anything run for a user: processes, slots, tokens and logs belong to it. Its kind decides how it
# starts and what its end means (service, lifecycle.kinds).
tasks = sa.Table(
    "tasks",
    metadata,
    # A trial's first is "<experiment>.<request id>", its next ones end in "-1", "-2" and so on; a deletion's
    # is "checkpoint-gc.<deletion>".
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    # The user it acts for: its processes' tokens are this user's.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("flow_run_id", Uuid),
    sa.Column("start_time", TS, nullable=False, server_default=now()),
    # The trial that has another task since its experiment was continued. NULL: nothing took its place.
    sa.Column(
        "former_of",
        # Not in CREATE TABLE: the two tables refer to each other.
        sa.ForeignKey("trials.id", ondelete="CASCADE", use_alter=True),
    ),
    # The rest is NULL for a trial's current task: `trials` and `experiments` hold it. A former task keeps
    # their values at its end, and `config` if the experiment's was changed later.
    sa.Column("name", sa.Text),
    sa.Column("project_id", sa.ForeignKey("projects.id")),
    # Of what a user launched (a command, a notebook …). NULL: it is where its trial is, or in none.
    sa.Column("workspace_id", sa.ForeignKey("workspaces.id")),
    sa.Column("config", JSONB(none_as_null=True)),
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("end_time", TS),
    # The id in the job queue, for commands and other tasks that a user launches; NULL for the rest.
    sa.Column("job_id", Uuid),
    # The files that were sent with it.
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    # The task whose process launched it with its own token; NULL: a user did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    # What its kind remembers beside the configuration. Never shown as it is: it may hold keys.
    sa.Column("data", JSONB(none_as_null=True)),
    # Of generic tasks: the parent task, and the task it was forked from.
    sa.Column("parent_id", sa.ForeignKey("tasks.id", ondelete="SET NULL")),
    sa.Column("forked_from", sa.Text),
    # It ends when nobody has used it for so long. NULL: never. And since when nobody uses it.
    sa.Column("idle_timeout_s", sa.Float(53)),
    sa.Column("idle_since", TS),
    # Of notebooks: the files that it keeps in the storage, as its process says.
    sa.Column("kept_bytes", sa.BigInteger),
    # Another launch of its owner's with the same key is this task.
    sa.Column("idempotency_key", sa.Text),
)
sa.Index(
    "uq_tasks_owner_id_idempotency_key",
    tasks.c.owner_id,
    tasks.c.idempotency_key,
    unique=True,
    postgresql_where=tasks.c.idempotency_key.isnot(None),
)
# Open tasks of the kinds whose state is in this table; then all tasks, the latest first.
sa.Index(
    "ix_tasks_open",
    tasks.c.kind,
    postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
)
sa.Index(
    "ix_tasks_open_of_owner",
    tasks.c.owner_id,
    postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
)
# What a user has launched, ended or not.
sa.Index(
    "ix_tasks_launched_of_owner",
    tasks.c.owner_id,
    tasks.c.end_time,
    postgresql_where=tasks.c.job_id.is_not(None),
)
sa.Index(
    "ix_tasks_kept_of_owner",
    tasks.c.owner_id,
    postgresql_where=sa.text("kept_bytes IS NOT NULL"),
)
# Tasks of trials have neither: no entry is written for them.
sa.Index(
    "ix_tasks_project_id", tasks.c.project_id, postgresql_where=tasks.c.project_id.is_not(None)
)
sa.Index(
    "ix_tasks_workspace_id",
    tasks.c.workspace_id,
    postgresql_where=tasks.c.workspace_id.is_not(None),
)
sa.Index("ix_tasks_start_time", tasks.c.start_time)
sa.Index("ix_tasks_job_id", tasks.c.job_id, postgresql_where=tasks.c.job_id.is_not(None))
sa.Index("ix_tasks_parent_id", tasks.c.parent_id, postgresql_where=tasks.c.parent_id.is_not(None))
sa.Index("ix_tasks_former_of", tasks.c.former_of, postgresql_where=tasks.c.former_of.is_not(None))

allocations = sa.Table(
    "allocations",
    metadata,
    # "<task id>.<run id>", as Determined names them.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    # Of a trial's; NULL for every other kind of task.
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE")),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), index=True),
    sa.Column("run_id", sa.Integer, nullable=False, server_default="1"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("resource_pool", sa.Text, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    # NULL: the default of its pool.
    sa.Column("priority", sa.Integer),
    sa.Column("preemptible", sa.Boolean, nullable=False, server_default=sa.true()),
    # Of a gang: its first node's.
    sa.Column("agent_id", sa.Text),
    sa.Column("slot_ids", JSONB, nullable=False, server_default=json("[]")),
    # The machine that its agent's cluster chose, which need not be the one of its slots; of a gang the nodes
    # have it. NULL: none is chosen, or the agent starts legs on the machine of their slots.
    sa.Column("machine", sa.Text),
    # Number of agents. More than 1: a gang, which has that many rows of allocation_resources.
    sa.Column("nodes", sa.Integer, nullable=False, server_default="1"),
    sa.Column("token_hash", sa.Text, unique=True),
    # Kept so that a launch repeated to a restarted agent carries the same token; cleared at end.
    sa.Column("token", sa.Text),
    sa.Column("requested_at", TS, nullable=False, server_default=now()),
    sa.Column("assigned_at", TS),
    # What its agent waits for before it runs, in words; of a gang the nodes have it. Of one that is
    # REQUESTED: why its agent's cluster had no room for the leg before.
    sa.Column("waits_for", sa.Text),
    # It gets no slots before that, because there was no room for so many legs in a row before it.
    sa.Column("rests_until", TS),
    sa.Column("unplaced_times", sa.Integer, nullable=False, server_default="0"),
    sa.Column("started_at", TS),
    sa.Column("ended_at", TS),
    # Its place in line when it continues work that a scheduler stopped. NULL: the place by `requested_at`.
    sa.Column("in_line_since", TS),
    sa.Column("preempt_requested_at", TS),
    # The allocation for which a scheduler stopped it; itself: it was above max_slots, or its pool changed.
    sa.Column("stopping_for", sa.Text),
    sa.Column("preempt_acked_at", TS),
    # Why its machine, or one of its machines, is going away, in words. NULL: nobody said that one is.
    sa.Column("leaving", sa.Text),
    sa.Column("kill_requested_at", TS),
    # The one start of its process that counts; of a gang the nodes have it. NULL: none was named.
    sa.Column("start_id", sa.Text),
    sa.Column("pid", sa.Integer),
    sa.Column("exit_code", sa.Integer),
    sa.Column("exit_signal", sa.Integer),
)
sa.Index(
    "ix_allocations_live",
    allocations.c.state,
    postgresql_where=allocations.c.state != "TERMINATED",
)

# For accounting, in the order in which slots were given.
sa.Index("ix_allocations_assigned_at", allocations.c.assigned_at, allocations.c.id)

# What allocations of experiments that were deleted since had used.
erased_usage = sa.Table(
    "erased_usage",
    metadata,
    sa.Column("allocation_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    # NULL: of a task that was no trial's.
    sa.Column("experiment_id", sa.Integer),
    sa.Column("labels", JSONB, nullable=False),
    sa.Column("resource_pool", sa.Text, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    # {agent: its slots}
    sa.Column("agents", JSONB, nullable=False),
    sa.Column("began", TS, nullable=False),
    sa.Column("ended", TS, nullable=False),
)
sa.Index("ix_erased_usage_began", erased_usage.c.began, erased_usage.c.allocation_id)

# The nodes of a gang, an allocation on several agents: written with the assignment, kept after the end.
# An allocation without rows runs on `allocations.agent_id` only.
allocation_resources = sa.Table(
    "allocation_resources",
    metadata,
    sa.Column(
        "allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True
    ),
    # "<allocation id>.<node>"; DET_RESOURCES_ID of its processes. Of the release before: "….<agent id>".
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text),
    sa.Column("slot_ids", JSONB, nullable=False, server_default=json("[]")),
    sa.Column("machine", sa.Text),
    # 0, 1 … in the order of the assignment; ranks follow addresses.
    sa.Column("node", sa.Integer, nullable=False, server_default="0"),
    # ASSIGNED | RUNNING | TERMINATED, and how it ended
    sa.Column("state", sa.Text, nullable=False, server_default="ASSIGNED"),
    sa.Column("waits_for", sa.Text),
    sa.Column("start_id", sa.Text),
    sa.Column("pid", sa.Integer),
    sa.Column("started_at", TS),
    sa.Column("ended_at", TS),
    sa.Column("exit_kind", sa.Text),
    sa.Column("exit_code", sa.Integer),
    sa.Column("exit_signal", sa.Integer),
    sa.Column("reason", sa.Text),
    # Where the others reach it, once its process has said so.
    sa.Column("address", sa.Text),
    sa.Column("posted_at", TS),
)

# Ports of live allocations that the proxy reaches (docs/inside/proxy.md): written with the report that the
# process runs, gone with the allocation's end.
allocation_ports = sa.Table(
    "allocation_ports",
    metadata,
    sa.Column(
        "allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True
    ),
    # What an address ends in: /proxy/<task>:<name>.
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    # Where the service connects to.
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    # determined.common.wire.legs.Port says what these mean.
    sa.Column("tcp", sa.Boolean, nullable=False),
    sa.Column("unauthenticated", sa.Boolean, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("keep_prefix", sa.Boolean, nullable=False),
    sa.Column("ready", sa.Boolean, nullable=False, server_default=sa.false()),
    # The process' own number, where a gate is at `port` (determined.common.wire.gate); else 0.
    sa.Column("behind", sa.Integer, nullable=False, server_default="0"),
    # Why it is not ready, in words.
    sa.Column("waits_for", sa.Text, nullable=False, server_default=""),
)

# Ways into tasks that run (`det exec`): asked for, then open at a port that is in allocation_ports.
allocation_doors = sa.Table(
    "allocation_doors",
    metadata,
    sa.Column(
        "allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column("node", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("agent_id", sa.Text, nullable=False, index=True),
    # Whoever may enter is told it; the supervisor knows its hash.
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("requested_at", TS, nullable=False, server_default=sa.func.now()),
    sa.Column("is_open", sa.Boolean, nullable=False, server_default=sa.false()),
    # Why it cannot be opened, in words.
    sa.Column("problem", sa.Text, nullable=False, server_default=""),
)

# What processes of an allocation have handed in to be gathered; the last two rounds are kept.
allocation_gathers = sa.Table(
    "allocation_gathers",
    metadata,
    sa.Column(
        "allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE"), primary_key=True
    ),
    # Of one process for one gathering: a repeated request changes nothing.
    sa.Column("request_uuid", sa.Text, primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("num_peers", sa.Integer, nullable=False),
    sa.Column("data", JSONB, nullable=False),
    sa.Column("posted_at", TS, nullable=False, server_default=now()),
)

# One leg of a task, from start to end of its process(es): what `det trial describe` lists.
legs = sa.Table(
    "legs",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("run_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("allocation_id", sa.ForeignKey("allocations.id", ondelete="CASCADE")),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("start_time", TS),
    sa.Column("end_time", TS),
)

log_policy_matches = sa.Table(
    "log_policy_matches",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), nullable=False),
    # The leg whose log it was, and the agent that it ran on; of several machines: "agent/machine".
    sa.Column("run_id", sa.Integer, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    # cancel_retries | exclude_node | NULL: shown only
    sa.Column("action", sa.Text),
    sa.Column("agent_id", sa.Text),
    sa.Column("line", sa.Text, nullable=False),
    sa.Column("matched_at", TS, nullable=False, server_default=now()),
    sa.UniqueConstraint("trial_id", "run_id", "name"),
)

# What tasks whose files come back have left behind, until their owner has fetched it.
task_files = sa.Table(
    "task_files",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("created_at", TS, nullable=False, server_default=sa.func.now(), index=True),
    # An archive in pieces; whole once it is `ready`.
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("ready", sa.Boolean, nullable=False, server_default=sa.false()),
    # What was left out and why, in words.
    sa.Column("remarks", JSONB, nullable=False, server_default=json("[]")),
)

task_file_pieces = sa.Table(
    "task_file_pieces",
    metadata,
    sa.Column("task_id", sa.ForeignKey("task_files.task_id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)

# The logins of browsers at the host names of tasks: each is good for one task's one port, and ends with the
# session that it was made from.
task_visits = sa.Table(
    "task_visits",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column(
        "session_id",
        sa.ForeignKey("user_sessions.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False, index=True),
    # The port's name; empty: the task's default port.
    sa.Column("port_name", sa.Text, nullable=False),
    # SHA-256 of the ticket in the first address, until it is used, and then of the cookie.
    sa.Column("ticket_hash", sa.Text, unique=True),
    sa.Column("cookie_hash", sa.Text, unique=True),
    sa.Column("created_at", TS, nullable=False, server_default=now()),
)

task_logs = sa.Table(
    "task_logs",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("task_id", sa.Text, nullable=False),
    sa.Column("allocation_id", sa.Text),
    sa.Column("agent_id", sa.Text),
    sa.Column("container_id", sa.Text),
    sa.Column("rank_id", sa.Integer),
    sa.Column("timestamp", TS, nullable=False),
    sa.Column("level", sa.Text),
    sa.Column("stdtype", sa.Text),
    sa.Column("source", sa.Text),
    # bytea, not text: Postgres' text cannot hold NUL bytes, and users print them.
    sa.Column("log", sa.LargeBinary, nullable=False),
    sa.Index("ix_task_logs_task", "task_id", "id"),
)

# How much of a log is stored, counted with its lines: no index of task_logs could say it quickly.
log_sizes = sa.Table(
    "log_sizes",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False, index=True),
    sa.Column("bytes", sa.BigInteger, nullable=False, server_default="0"),
    # Its last lines were not stored, because of its owner's quota; the log says so.
    sa.Column("is_cut", sa.Boolean, nullable=False, server_default=sa.false()),
)
