"""Every table of the platform, as SQLAlchemy Core metadata.

One truth for the service, for Alembic (which compares its migrations against this metadata) and for
tests. Core rather than ORM: every state change in the service is one explicit transaction, and
the hot paths (metrics, logs) use COPY.

Times are ``timestamptz``. Floats that JSON cannot hold (NaN, infinities) are kept in jsonb as the
strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
"""

from determined_registry.database.tables.base import TS, Uuid, metadata
from determined_registry.database.tables.checkpoint import (
    checkpoints,
    deletions,
    storages,
)
from determined_registry.database.tables.experiment import (
    experiments,
    model_definitions,
    search_events,
    searches,
    trial_sources,
    trials,
)
from determined_registry.database.tables.kept_run import kept_runs
from determined_registry.database.tables.mlflow import (
    mlflow_experiments,
    mlflow_model_metrics,
    mlflow_runs,
)
from determined_registry.database.tables.model import (
    model_alias_history,
    model_aliases,
    model_versions,
    models,
)
from determined_registry.database.tables.people import (
    config_policies,
    group_members,
    groups,
    pool_bindings,
    project_visits,
    projects,
    role_assignments,
    user_defaults,
    user_settings,
    workspace_pins,
    workspaces,
)
from determined_registry.database.tables.pipeline import (
    pipeline_experiments,
    pipeline_steps,
    pipelines,
)
from determined_registry.database.tables.platform import (
    agents,
    cluster,
    disabled_machines,
    page_tickets,
    pools,
    prefect_outbox,
    slots,
    user_sessions,
    users,
)
from determined_registry.database.tables.report import (
    metric_sizes,
    metric_summaries,
    metrics,
    report_streams,
)
from determined_registry.database.tables.retraining import (
    live_metrics,
    retraining_runs,
    retrainings,
)
from determined_registry.database.tables.task import (
    allocation_doors,
    allocation_gathers,
    allocation_ports,
    allocation_resources,
    allocations,
    erased_usage,
    legs,
    log_policy_matches,
    log_sizes,
    task_file_pieces,
    task_files,
    task_logs,
    task_visits,
    tasks,
)
from determined_registry.database.tables.template import templates

__all__ = [
    "TS",
    "Uuid",
    "agents",
    "allocation_doors",
    "allocation_gathers",
    "allocation_ports",
    "allocation_resources",
    "allocations",
    "checkpoints",
    "cluster",
    "config_policies",
    "deletions",
    "disabled_machines",
    "erased_usage",
    "experiments",
    "group_members",
    "groups",
    "kept_runs",
    "legs",
    "live_metrics",
    "log_policy_matches",
    "log_sizes",
    "metadata",
    "metric_sizes",
    "metric_summaries",
    "metrics",
    "mlflow_experiments",
    "mlflow_model_metrics",
    "mlflow_runs",
    "model_alias_history",
    "model_aliases",
    "model_definitions",
    "model_versions",
    "models",
    "page_tickets",
    "pipeline_experiments",
    "pipeline_steps",
    "pipelines",
    "pool_bindings",
    "pools",
    "prefect_outbox",
    "project_visits",
    "projects",
    "report_streams",
    "retraining_runs",
    "retrainings",
    "role_assignments",
    "search_events",
    "searches",
    "slots",
    "storages",
    "task_file_pieces",
    "task_files",
    "task_logs",
    "task_visits",
    "tasks",
    "templates",
    "trial_sources",
    "trials",
    "user_defaults",
    "user_sessions",
    "user_settings",
    "users",
    "workspace_pins",
    "workspaces",
]
