"""Every table of the platform, as SQLAlchemy Core metadata.

One truth for the service, for Alembic (which compares its migrations against this metadata) and for
tests. Core rather than ORM: every state change in the service is one explicit transaction, and
the hot paths (metrics, logs) use COPY.

Times are ``timestamptz``. Floats that JSON cannot hold (NaN, infinities) are kept in jsonb as the
strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, UUID

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _now() -> sa.DefaultClause:
    return sa.DefaultClause(sa.text("now()"))


def _json(text: str) -> sa.DefaultClause:
    return sa.DefaultClause(sa.text(f"'{text}'::jsonb"))


TS = sa.DateTime(timezone=True)
Uuid = UUID(as_uuid=True)

# One row: who this cluster is, so that a database keeps its identity wherever it is served from.
cluster = sa.Table(
    "cluster",
    metadata,
    sa.Column("singleton", sa.Boolean, primary_key=True),
    sa.Column("id", Uuid, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    # The cluster configuration in force, as determined.common.cluster_config.stored() makes it. NULL:
    # none was put into force yet.
    sa.Column("config", JSONB(none_as_null=True)),
    sa.CheckConstraint("singleton", name="one_row"),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("username", sa.Text, nullable=False, unique=True),
    sa.Column("display_name", sa.Text),
    # A slow hash of what the client sends; the client already hashes (docs/service.md). NULL: no login.
    sa.Column("password_hash", sa.Text),
    sa.Column("admin", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("active", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("remote", sa.Boolean, nullable=False, server_default=sa.false()),
    # {"agentUid", "agentGid", "agentUser", "agentGroup"}: the account on agents that the user is linked with.
    sa.Column("agent_user_group", JSONB(none_as_null=True)),
    sa.Column("modified_at", TS, nullable=False, server_default=_now()),
)

user_sessions = sa.Table(
    "user_sessions",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("user_id", sa.ForeignKey("users.id", ondelete="CASCADE"), nullable=False),
    # SHA-256 of the bearer token: a stolen table lets nobody in.
    sa.Column("token_hash", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    sa.Column("expires_at", TS, nullable=False),
)

model_definitions = sa.Table(
    "model_definitions",
    metadata,
    # SHA-256 hex of the tar.gz: equal directories are stored once.
    sa.Column("hash", sa.Text, primary_key=True),
    sa.Column("archive", sa.LargeBinary, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
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
    # Its work pool in Prefect was paused because it was removed, not because somebody wanted a pause.
    sa.Column("prefect_paused", sa.Boolean, nullable=False, server_default=sa.false()),
)

experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("labels", JSONB, nullable=False, server_default=_json("[]")),
    sa.Column("config", JSONB, nullable=False),
    sa.Column("original_config", sa.Text, nullable=False, server_default=""),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # The task whose process submitted it with its own token, or that came after it in its trial; NULL: a user
    # did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    sa.Column(
        "job_id", Uuid, nullable=False, server_default=sa.text("gen_random_uuid()"), index=True
    ),
    sa.Column("parent_id", sa.ForeignKey("experiments.id", ondelete="SET NULL")),
    sa.Column("project_id", sa.Integer, nullable=False, server_default="1"),
    sa.Column("resource_pool", sa.Text, nullable=False, server_default="default"),
    # {"home": ..., "reason": ...}: the pool that it was sent to, and why it went on to another by itself.
    # NULL: it did not.
    sa.Column("fallback", JSONB),
    # Its place in the queue, in seconds since 1970. NULL: that of `start_time`.
    sa.Column("queue_position", sa.Float(53)),
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    # Its processes run outside of the platform and report by themselves.
    sa.Column("unmanaged", sa.Boolean, nullable=False, server_default=sa.false()),
    # The name under which an unmanaged experiment is found again.
    sa.Column("external_id", sa.Text, unique=True),
    sa.Column("progress", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("start_time", TS, nullable=False, server_default=_now()),
    sa.Column("end_time", TS),
    sa.Column("flow_run_id", Uuid),
    # A word that its submitter made up: a request with the same word is answered with this experiment.
    sa.Column("idempotency_key", sa.Text),
    sa.UniqueConstraint("owner_id", "idempotency_key"),
)

sa.Index(
    "ix_experiments_completed",
    experiments.c.end_time,
    postgresql_where=experiments.c.state == "COMPLETED",
)

searches = sa.Table(
    "searches",
    metadata,
    sa.Column(
        "experiment_id",
        sa.ForeignKey("experiments.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("snapshot", JSONB),
    # Id of the last event the snapshot knows of; -1: there is no snapshot (yet).
    sa.Column("snapshot_event_id", sa.BigInteger, nullable=False, server_default="-1"),
    # Of the operations committed after that event: a driver that replays them compares.
    sa.Column("operations_digest", sa.Text),
    # Id of the last event whose operations are committed; -1: not even the initial operations.
    sa.Column("committed_event_id", sa.BigInteger, nullable=False, server_default="-1"),
    sa.Column("last_event_id", sa.BigInteger, nullable=False, server_default="0"),
    # The flow process that drives the search; a second one that attaches takes over.
    sa.Column("driver", Uuid),
    sa.Column("driver_seen_at", TS),
)

search_events = sa.Table(
    "search_events",
    metadata,
    sa.Column(
        "experiment_id",
        sa.ForeignKey("experiments.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("event", JSONB, nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
)

# Everything that is run for somebody: what processes, slots, tokens and logs belong to. Of which kind it is
# decides what is started and what its end means (service, lifecycle.kinds).
tasks = sa.Table(
    "tasks",
    metadata,
    # A trial's first is "<experiment>.<request id>", its next ones end in "-1", "-2" and so on; a deletion's
    # is "checkpoint-gc.<deletion>".
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    # For whom it acts: its processes' tokens are this user's.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("flow_run_id", Uuid),
    sa.Column("start_time", TS, nullable=False, server_default=_now()),
    # The trial that has another task since its experiment was continued. NULL: nothing took its place.
    sa.Column(
        "former_of",
        # Not in CREATE TABLE: the two tables refer to each other.
        sa.ForeignKey("trials.id", ondelete="CASCADE", use_alter=True),
    ),
    # The rest is NULL for the task that a trial has: `trials` and `experiments` say it. A former one keeps
    # what they said at its end, and `config` where the experiment's was changed since.
    sa.Column("name", sa.Text),
    sa.Column("project_id", sa.Integer),
    sa.Column("config", JSONB(none_as_null=True)),
    sa.Column("state", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("end_time", TS),
    # Of commands and other tasks that somebody launches; NULL for the rest. The id in the job queue.
    sa.Column("job_id", Uuid),
    # The files that were sent with it.
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    # The task whose process launched it with its own token; NULL: a user did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    # What its kind remembers beside the configuration. Never shown as it is: it may hold keys.
    sa.Column("data", JSONB(none_as_null=True)),
    # Of generic tasks: the task under which it stands, the one that it was forked from.
    sa.Column("parent_id", sa.ForeignKey("tasks.id", ondelete="SET NULL")),
    sa.Column("forked_from", sa.Text),
    # It ends when nobody has used it for so long. NULL: never. And since when nobody uses it.
    sa.Column("idle_timeout_s", sa.Float(53)),
    sa.Column("idle_since", TS),
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
# Of the kinds whose state is here, what has not ended; then everything, the latest first.
sa.Index(
    "ix_tasks_open",
    tasks.c.kind,
    postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
)
sa.Index("ix_tasks_start_time", tasks.c.start_time)
sa.Index("ix_tasks_job_id", tasks.c.job_id, postgresql_where=tasks.c.job_id.is_not(None))
sa.Index("ix_tasks_parent_id", tasks.c.parent_id, postgresql_where=tasks.c.parent_id.is_not(None))
sa.Index("ix_tasks_former_of", tasks.c.former_of, postgresql_where=tasks.c.former_of.is_not(None))

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), nullable=False),
    sa.Column("request_id", sa.Text, nullable=False),
    sa.Column(
        # The one it has now; `tasks.former_of` names those before.
        "task_id",
        sa.Text,
        sa.ForeignKey("tasks.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
    ),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("hparams", JSONB, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("end_time", TS),
    # Legs so far (the run_count of its run in Prefect) and how many of them ended in a counted failure.
    sa.Column("run_count", sa.Integer, nullable=False, server_default="0"),
    sa.Column("restarts", sa.Integer, nullable=False, server_default="0"),
    # The current searcher operation: absolute target length, its ordinal, whether it is done.
    sa.Column("op_length", sa.BigInteger),
    sa.Column("op_index", sa.Integer, nullable=False, server_default="0"),
    sa.Column("op_complete", sa.Boolean, nullable=False, server_default=sa.true()),
    # The searcher will give no further operation / told it to stop (reports form).
    sa.Column("closed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("stop_requested", sa.Boolean, nullable=False, server_default=sa.false()),
    # An ExitReason the trial reported itself (INVALID_HP, USER_REQUESTED_STOP).
    sa.Column("early_exit", sa.Text),
    sa.Column("warm_start_checkpoint", Uuid),
    sa.Column("latest_checkpoint", Uuid),
    sa.Column("steps_completed", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("progress", sa.Float(53), nullable=False, server_default="0"),
    sa.Column("runner_state", sa.Text, nullable=False, server_default=""),
    sa.Column("run_metadata", JSONB, nullable=False, server_default=_json("{}")),
    # What answers for the trial since its experiment was continued (service, submission.continuation):
    # {"lengths": {length: metric}, "completed": bool, "exit": ExitReason, "task": {"id", "state", "reason",
    # "end_time"}}; `task` is the task that it had then. NULL: it never was.
    sa.Column("known", JSONB),
    sa.Column("latest_validation_id", sa.BigInteger),
    sa.Column("best_validation_id", sa.BigInteger),
    # The searcher metric of the best validation, as reported; NULL: none yet.
    sa.Column("searcher_metric_value", sa.Float(53)),
    # Of an unmanaged experiment: the name under which it is found again, and its last sign of life.
    sa.Column("external_id", sa.Text),
    sa.Column("seen_at", TS),
    sa.UniqueConstraint("experiment_id", "request_id"),
    sa.UniqueConstraint("experiment_id", "external_id"),
)
# Pages of an experiment's trials; its best one, whether small or large metrics are wanted (NaN is last).
sa.Index("ix_trials_experiment", trials.c.experiment_id, trials.c.id)
sa.Index(
    "ix_trials_least_metric",
    trials.c.experiment_id,
    trials.c.searcher_metric_value,
    trials.c.id,
    postgresql_where=trials.c.searcher_metric_value.is_not(None),
)
sa.Index(
    "ix_trials_greatest_metric",
    trials.c.experiment_id,
    sa.text("(- searcher_metric_value)"),
    trials.c.id,
    postgresql_where=trials.c.searcher_metric_value.is_not(None),
)
# Those that have not ended: what waits, what the reconciler looks through again and again.
sa.Index(
    "ix_trials_open",
    trials.c.experiment_id,
    trials.c.id,
    postgresql_where=sa.text("state NOT IN ('COMPLETED', 'CANCELED', 'ERROR')"),
)

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
    sa.Column("slot_ids", JSONB, nullable=False, server_default=_json("[]")),
    # On so many agents. More than 1: a gang, which has that many rows of allocation_resources.
    sa.Column("nodes", sa.Integer, nullable=False, server_default="1"),
    sa.Column("token_hash", sa.Text, unique=True),
    # Kept so that a launch repeated to a restarted agent carries the same token; cleared at end.
    sa.Column("token", sa.Text),
    sa.Column("requested_at", TS, nullable=False, server_default=_now()),
    sa.Column("assigned_at", TS),
    sa.Column("started_at", TS),
    sa.Column("ended_at", TS),
    # Its place in line, when it goes on with what a scheduler stopped. NULL: that of `requested_at`.
    sa.Column("in_line_since", TS),
    sa.Column("preempt_requested_at", TS),
    # The allocation for which a scheduler stopped it; itself: it was above max_slots, or its pool changed.
    sa.Column("stopping_for", sa.Text),
    sa.Column("preempt_acked_at", TS),
    sa.Column("kill_requested_at", TS),
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
    sa.Column("experiment_id", sa.Integer, nullable=False),
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
    # "<allocation id>.<agent id>"; DET_RESOURCES_ID of its processes.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text),
    sa.Column("slot_ids", JSONB, nullable=False, server_default=_json("[]")),
    # 0, 1 … in the order of the assignment; ranks follow addresses.
    sa.Column("node", sa.Integer, nullable=False, server_default="0"),
    # ASSIGNED | RUNNING | TERMINATED, and how it ended
    sa.Column("state", sa.Text, nullable=False, server_default="ASSIGNED"),
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

# Ports of live allocations that the proxy reaches (docs/proxy.md): written with the report that the process
# runs, gone with the allocation's end.
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
    sa.Column("remarks", JSONB, nullable=False, server_default=_json("[]")),
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
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
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
    sa.Column("posted_at", TS, nullable=False, server_default=_now()),
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
    # The leg whose log it was, and the agent that it ran on.
    sa.Column("run_id", sa.Integer, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    # cancel_retries | exclude_node | NULL: shown only
    sa.Column("action", sa.Text),
    sa.Column("agent_id", sa.Text),
    sa.Column("line", sa.Text, nullable=False),
    sa.Column("matched_at", TS, nullable=False, server_default=_now()),
    sa.UniqueConstraint("trial_id", "run_id", "name"),
)

metrics = sa.Table(
    "metrics",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), nullable=False),
    sa.Column("run_id", sa.Integer, nullable=False),
    sa.Column("group_name", sa.Text, nullable=False),
    sa.Column("steps_completed", sa.BigInteger, nullable=False),
    sa.Column("end_time", TS, nullable=False),
    sa.Column("metrics", JSONB, nullable=False),
    sa.Column("batch_metrics", JSONB),
    # A later leg began again at or before this step: kept, but no longer part of the trial's curve.
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_metrics_trial", "trial_id", "group_name", "steps_completed"),
)

# What is known of one metric of a trial without reading its reports. A table of its own, not a
# column of trials: each report adds to it, and must not wait for (or hold up) a state change.
metric_summaries = sa.Table(
    "metric_summaries",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("group_name", sa.Text, primary_key=True),
    sa.Column("metric", sa.Text, primary_key=True),
    # number | boolean | string | date | object | array | null; "string" when types are mixed.
    sa.Column("type", sa.Text, nullable=False),
    # Reports that hold the metric, whatever its value.
    sa.Column("count", sa.BigInteger, nullable=False),
    # Over the finite numbers among them; NULL: none yet.
    sa.Column("finite_count", sa.BigInteger, nullable=False),
    sa.Column("sum", sa.Float(53)),
    sa.Column("min", sa.Float(53)),
    sa.Column("max", sa.Float(53)),
    sa.Column("last", JSONB),
    sa.Column("last_steps", sa.BigInteger, nullable=False),
)

# A sender of numbered batches (metrics or logs): the last number stored, so that a batch which is
# sent again after a lost answer is not stored twice.
report_streams = sa.Table(
    "report_streams",
    metadata,
    sa.Column("stream_id", Uuid, primary_key=True),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("updated_at", TS, nullable=False, server_default=_now()),
)

# What a run of the flow `checkpoint-gc` removes from checkpoint storage: a task of kind CHECKPOINT_GC, whose
# row has its state, its last run in Prefect, its start and end.
deletions = sa.Table(
    "deletions",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column(
        "task_id",
        sa.Text,
        # As Postgres words it, which Alembic compares.
        sa.Computed("('checkpoint-gc.'::text || (id)::text)", persisted=True),
        sa.ForeignKey("tasks.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
    ),
    # "policy": what the experiment's policy does not keep, and what killed processes left;
    # "checkpoints": what a user named; "tensorboard": an experiment's TensorBoard files;
    # "experiment": everything, and then its rows.
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE")),
    # Of kind "checkpoints": only the files that match. NULL: the whole checkpoints.
    sa.Column("globs", JSONB(none_as_null=True)),
    # Runs made for it so far in Prefect, the ids of all but the last, and when the last one spoke.
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("earlier_run_ids", JSONB, nullable=False, server_default=_json("[]")),
    sa.Column("seen_at", TS, nullable=False, server_default=_now()),
)
# Whose rows are still to be erased.
sa.Index(
    "ix_deletions_of_experiments", deletions.c.id, postgresql_where=deletions.c.kind == "experiment"
)

# The places where checkpoints are: a number for each configuration of a storage.
storages = sa.Table(
    "storages",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # SHA-256 of the checkpoint_storage section without what says how many checkpoints are kept. No secret
    # is here a second time.
    sa.Column("digest", sa.Text, nullable=False, unique=True),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("uuid", Uuid, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text),
    sa.Column("allocation_id", sa.Text),
    sa.Column("experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), index=True),
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), index=True),
    sa.Column("report_time", TS, nullable=False, server_default=_now()),
    sa.Column("steps_completed", sa.BigInteger, nullable=False, server_default="0"),
    # {relative path: bytes}; directories end in "/" and have size 0.
    sa.Column("resources", JSONB, nullable=False, server_default=_json("{}")),
    # Bytes in all.
    sa.Column("size", sa.BigInteger, nullable=False, server_default="0"),
    # {relative path: "sha256:<hex>"}
    sa.Column("checksums", JSONB, nullable=False, server_default=_json("{}")),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=_json("{}")),
    # Why it is in state ERROR: which file is missing or differs.
    sa.Column("reason", sa.Text),
    # A checkpoint_storage section, when it is not the experiment's.
    sa.Column("storage", JSONB(none_as_null=True)),
    sa.Column("storage_id", sa.ForeignKey("storages.id")),
    # Its files are about to be deleted: nothing may start from it any more.
    sa.Column("deletion_id", sa.ForeignKey("deletions.id", ondelete="SET NULL"), index=True),
)

# Trained models by name: what determined_registry.models changes, for the service and for MLflow's stores.
models = sa.Table(
    "models",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    # Unique whatever its case (see the index), without "/", and never a number alone.
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("description", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=_json("{}")),
    # Determined's labels: a list of texts.
    sa.Column("labels", JSONB, nullable=False, server_default=_json("[]")),
    # What MLflow calls tags: {key: text}. Apart from labels and metadata.
    sa.Column("tags", JSONB, nullable=False, server_default=_json("{}")),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # The task whose process made it with its own token; NULL: a user did. Plain text: the task may go.
    sa.Column("submitted_by", sa.Text),
    # Of the request that made it: one that is sent again makes nothing.
    sa.Column("request_id", Uuid),
    # There is the one workspace with the id 1 so far.
    sa.Column("workspace_id", sa.Integer, nullable=False, server_default="1"),
    # It takes no new versions and changes no more.
    sa.Column("archived", sa.Boolean, nullable=False, server_default=sa.false()),
    # The last number that a version got: numbers begin with 1, and one of a deleted version never returns.
    # Whoever makes a version locks this row.
    sa.Column("last_version", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    # The last change of the model, its versions or its aliases.
    sa.Column("updated_at", TS, nullable=False, server_default=_now()),
)
sa.Index("uq_models_lower_name", sa.func.lower(models.c.name), unique=True)

model_versions = sa.Table(
    "model_versions",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    # It was COMPLETED when it was registered, and cannot go while this row is there: whoever registers locks
    # the checkpoint FOR SHARE, whoever deletes locks it FOR NO KEY UPDATE and then looks here.
    sa.Column("checkpoint_uuid", sa.ForeignKey("checkpoints.uuid"), nullable=False, index=True),
    # A second name for the version; need not be unique.
    sa.Column("name", sa.Text, nullable=False, server_default=""),
    # In a line what is new in it (MLflow's description of a version).
    sa.Column("comment", sa.Text, nullable=False, server_default=""),
    sa.Column("notes", sa.Text, nullable=False, server_default=""),
    sa.Column("metadata", JSONB, key="user_metadata", nullable=False, server_default=_json("{}")),
    sa.Column("labels", JSONB, nullable=False, server_default=_json("[]")),
    sa.Column("tags", JSONB, nullable=False, server_default=_json("{}")),
    # What an MLflow client called the version's source, which may be a folder within the checkpoint. NULL:
    # the whole checkpoint.
    sa.Column("source", sa.Text),
    # Of the request that made it: one that is sent again makes nothing.
    sa.Column("request_id", Uuid),
    # Who registered it.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    sa.Column("updated_at", TS, nullable=False, server_default=_now()),
    sa.UniqueConstraint("model_id", "version"),
    sa.UniqueConstraint("model_id", "request_id"),
)

# Which version a name such as "champion" stands for now.
model_aliases = sa.Table(
    "model_aliases",
    metadata,
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
    # Of letters, digits, "_" and "-"; neither "latest", nor a number, nor "v" and a number.
    sa.Column("alias", sa.Text, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("moved_at", TS, nullable=False, server_default=_now()),
    sa.ForeignKeyConstraint(
        ["model_id", "version"],
        ["model_versions.model_id", "model_versions.version"],
        ondelete="CASCADE",
    ),
    sa.Index("ix_model_aliases_version", "model_id", "version"),
)

# Every move of an alias, in their order; goes with the model. Written in the transaction that moves it.
model_alias_history = sa.Table(
    "model_alias_history",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    sa.Column("alias", sa.Text, nullable=False),
    # Numbers of versions, which may have been deleted since. NULL: it was new, or was deleted.
    sa.Column("from_version", sa.Integer),
    sa.Column("to_version", sa.Integer),
    sa.Column("user_id", sa.ForeignKey("users.id"), nullable=False),
    sa.Column("moved_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Index("ix_model_alias_history_model_id", "model_id", "alias", "id"),
)

# What a trial says that it uses, such as a batch inference the version of a model.
trial_sources = sa.Table(
    "trial_sources",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    sa.Column(
        "checkpoint_uuid",
        sa.ForeignKey("checkpoints.uuid", ondelete="CASCADE"),
        primary_key=True,
        index=True,
    ),
    # INFERENCE | FINE_TUNING
    sa.Column("kind", sa.Text, primary_key=True),
    # The version under whose number it was found, which may have been deleted since. NULL: none was named.
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="SET NULL")),
    sa.Column("model_version", sa.Integer),
)

# What MLflow's clients say of experiments and runs and what has no column elsewhere
# (determined_registry.mlflow); all else that MLflow shows is read from the tables above.
mlflow_experiments = sa.Table(
    "mlflow_experiments",
    metadata,
    sa.Column(
        "experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    ),
    # Under which an MLflow client made it and finds it again. NULL: it was made otherwise.
    sa.Column("name", sa.Text, unique=True),
    # {key: text}
    sa.Column("tags", JSONB, nullable=False, server_default=_json("{}")),
)

mlflow_runs = sa.Table(
    "mlflow_runs",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    # An MLflow client started the trial, so that nothing but MLflow's own client gives signs of its life, and
    # its metrics are called what the client called them, without their group.
    sa.Column("native", sa.Boolean, nullable=False, server_default=sa.false()),
    # NULL: a name is made from the trial's number.
    sa.Column("name", sa.Text),
    # What MLflow calls parameters: {key: text}. Of a native one they are the trial's hyperparameters instead.
    sa.Column("params", JSONB, nullable=False, server_default=_json("{}")),
    sa.Column("tags", JSONB, nullable=False, server_default=_json("{}")),
    # The data sets that the run said it used, as MLflow's JSON.
    sa.Column("inputs", JSONB, nullable=False, server_default=_json("[]")),
    # Files in checkpoint storage that belong to no checkpoint: {path: bytes}
    sa.Column("artifacts", JSONB, nullable=False, server_default=_json("{}")),
    # Hidden since then, as MLflow's clients delete runs. NULL: shown.
    sa.Column("deleted_at", TS),
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

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("resource_pool", sa.ForeignKey("pools.name"), nullable=False),
    sa.Column("host", sa.Text, nullable=False, server_default=""),
    sa.Column("version", sa.Text, nullable=False, server_default=""),
    sa.Column("slot_type", sa.Text, nullable=False, server_default="cpu"),
    # What experiments may ask for: {"gpu": "a100", ...}
    sa.Column("labels", JSONB, nullable=False, server_default=_json("{}")),
    # A new value at each start of the agent process.
    sa.Column("session", Uuid, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("draining", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("registered_at", TS, nullable=False, server_default=_now()),
    sa.Column("last_heartbeat", TS, nullable=False, server_default=_now()),
)

slots = sa.Table(
    "slots",
    metadata,
    sa.Column("agent_id", sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("slot_id", sa.Integer, primary_key=True, autoincrement=False),
    # {"type": "cpu"|"cuda", "uuid": ..., "brand": ...}
    sa.Column("device", JSONB, nullable=False, server_default=_json("{}")),
    sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
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
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("last_error", sa.Text),
)

# What trains a model again (docs/retraining.md); one for each model, and it goes with the model.
retrainings = sa.Table(
    "retrainings",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("model_id", sa.ForeignKey("models.id", ondelete="CASCADE"), nullable=False),
    # In whose name its experiments run, and who moves the alias.
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # Rule, evaluation, schedule and so on, as determined_service.retraining.plans checks it.
    sa.Column("plan", JSONB, nullable=False),
    # The experiment configuration as JSON text, with its secrets: it is shown to nobody.
    sa.Column("config", sa.Text, nullable=False),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.false()),
    # When the schedule wants the next run; in the past: as soon as the run before has ended. NULL: never.
    sa.Column("next_at", TS),
    # What was seen last of each event of the plan (determined_service.retraining.events): {its text: {…}}
    sa.Column("marks", JSONB, nullable=False, server_default=_json("{}")),
    sa.Column("created_at", TS, nullable=False, server_default=_now()),
    sa.UniqueConstraint("model_id"),
)

# How a model does where it is used, as its users report it; the newest of each name stay.
live_metrics = sa.Table(
    "live_metrics",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("retraining_id", sa.ForeignKey("retrainings.id", ondelete="CASCADE"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Float(53), nullable=False),
    # The version that was used: the champion of then, unless the report said another. NULL: there was none.
    sa.Column("version", sa.Integer),
    sa.Column("reported_at", TS, nullable=False, server_default=_now()),
    sa.Index("ix_live_metrics_name", "retraining_id", "name", "id"),
)

# Each time that a model was trained again, or rolled back. What a step finds out is written before anything
# is done with it, and whoever takes a step locks the row.
retraining_runs = sa.Table(
    "retraining_runs",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("retraining_id", sa.ForeignKey("retrainings.id", ondelete="CASCADE"), nullable=False),
    # determined_service.retraining.runs says which there are.
    sa.Column("state", sa.Text, nullable=False),
    # "schedule", what happened, or who asked for it.
    sa.Column("cause", sa.Text, nullable=False),
    # Of a scheduled run, the time that the schedule meant; it began later when the cluster was away.
    sa.Column("due_at", TS),
    # It trains although the data has not changed.
    sa.Column("forced", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("data_version", sa.Text),
    # Plain numbers: the experiments may be deleted, the history stays.
    sa.Column("check_experiment", sa.Integer),
    sa.Column("training_experiment", sa.Integer),
    sa.Column("evaluation_experiment", sa.Integer),
    # How often it was evaluated: again when somebody moved the alias meanwhile.
    sa.Column("evaluations", sa.Integer, nullable=False, server_default="0"),
    # The checkpoint that was trained, and the version that it became.
    sa.Column("challenger", Uuid),
    # The version that it is compared with. NULL: there was no champion.
    sa.Column("champion_version", sa.Integer),
    sa.Column("version", sa.Integer),
    # {"promote": bool, "reason": text, "scores": …}: written before it is acted on.
    sa.Column("decision", JSONB(none_as_null=True)),
    sa.Column("reason", sa.Text),
    sa.Column("failed_step", sa.Text),
    # Its run in Prefect, how many there were, and when the last one asked.
    sa.Column("flow_run_id", Uuid),
    # The run in Prefect by which somebody began it there: one that is run again begins nothing.
    sa.Column("begun_by", Uuid, unique=True),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("seen_at", TS, nullable=False, server_default=_now()),
    sa.Column("started_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Column("ended_at", TS),
    sa.Index("ix_retraining_runs_retraining_id", "retraining_id", "id"),
    # Two runs of one model are never open at the same time.
    sa.Index(
        "uq_retraining_runs_open",
        "retraining_id",
        unique=True,
        postgresql_where=sa.text("state IN ('CHECKING', 'TRAINING', 'EVALUATING', 'PROMOTING')"),
    ),
)

# Pipelines of experiments (docs/pipelines.md). Whoever takes a step of one locks its row.
pipelines = sa.Table(
    "pipelines",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner_id", sa.ForeignKey("users.id"), nullable=False),
    # The task whose process submitted it.
    sa.Column("submitted_by", sa.Text),
    # determined.common.pipeline.Plan as JSON text, with the secrets of its configurations: shown to nobody.
    sa.Column("plan", sa.Text, nullable=False),
    # determined_service.pipelines.machine says which there are.
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # Of a submission that may be sent again.
    sa.Column("idempotency_key", sa.Text),
    # Its run in Prefect, and how many were made.
    sa.Column("flow_run_id", Uuid),
    sa.Column("runs", sa.Integer, nullable=False, server_default="0"),
    # How often in a row the flow was interrupted, with no change in between.
    sa.Column("revivals", sa.Integer, nullable=False, server_default="0"),
    # It was resumed, and its flow is to be started again.
    sa.Column("wake", sa.Boolean, nullable=False, server_default=sa.false()),
    # When its flow asked last.
    sa.Column("seen_at", TS, nullable=False, server_default=_now()),
    # Counts the changes, and how many of them the page of the run shows.
    sa.Column("changes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("shown", sa.Integer, nullable=False, server_default="0"),
    sa.Column("started_at", TS, nullable=False, server_default=sa.text("clock_timestamp()")),
    sa.Column("ended_at", TS),
    sa.UniqueConstraint("owner_id", "idempotency_key"),
    sa.Index("ix_pipelines_open", "id", postgresql_where=sa.text("state = 'RUNNING'")),
    sa.Index("ix_pipelines_unshown", "id", postgresql_where=sa.text("shown < changes")),
)

pipeline_steps = sa.Table(
    "pipeline_steps",
    metadata,
    sa.Column("pipeline_id", sa.ForeignKey("pipelines.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # What it fans out over, once that is known.
    sa.Column("items", JSONB(none_as_null=True)),
    sa.Column("model_def_hash", sa.ForeignKey("model_definitions.hash")),
    sa.Column("started_at", TS),
    sa.Column("ended_at", TS),
)

# Each try of each experiment of a step; the last try of an item counts.
pipeline_experiments = sa.Table(
    "pipeline_experiments",
    metadata,
    sa.Column("pipeline_id", sa.Integer, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("item", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    # A plain number: the experiment may be deleted, what it found stays.
    sa.Column("experiment_id", sa.Integer),
    # It ran already, for somebody else.
    sa.Column("cached", sa.Boolean, nullable=False, server_default=sa.false()),
    # determined.common.pipeline.Result, written when the experiment counts as completed.
    sa.Column("result", JSONB(none_as_null=True)),
    sa.ForeignKeyConstraint(
        ["pipeline_id", "step"],
        ["pipeline_steps.pipeline_id", "pipeline_steps.step"],
        ondelete="CASCADE",
    ),
    sa.Index("ix_pipeline_experiments_experiment_id", "experiment_id"),
)
