"""The tables as one user may see them: a view for each in the schema :data:`SCHEMA`.

A connection whose ``search_path`` is this schema alone reads the views under the tables' names, so no
statement needs its own condition, and none can be forgotten. A view holds the rows that lie in the
workspaces which the connection's settings name (:data:`SETTINGS`); without them it is empty.

:func:`drop` and :func:`make` go around each migration, in its transaction: a column that a view shows could
not be changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import sqlalchemy as sa

from determined_registry.database.tables import metadata

SCHEMA = "seen"
ALL = "{0}"
"""The value of a setting that stands for all workspaces; no workspace has the number 0."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a connection shows: by kind of thing the workspaces, as Postgres writes an array (``{1,2}``) or
    :data:`ALL`; the ``user`` who asks, by number; and, if a process of a task asks, its ``experiment`` ("0":
    it is not a trial's) and ``task``."""

    user: str
    experiment: str
    task: str
    workspaces: str
    projects: str
    experiments: str
    artifacts: str
    pipelines: str
    tasks: str
    models: str
    templates: str


NOTHING = Seen("0", "0", "", *(["{}"] * 8))
SETTINGS = tuple(field.name for field in fields(Seen))

_WORKSPACES = (
    "SELECT array_agg(w.id)::text FROM public.workspaces w"
    " WHERE %({0})s = '{{0}}' OR w.id = ANY (cast(%({0})s AS int[]))"
)
_PROJECTS = (
    "SELECT array_agg(p.id)::text FROM public.projects p"
    " WHERE %({0})s = '{{0}}' OR p.workspace_id = ANY (cast(%({0})s AS int[]))"
)
_VALUES = {
    "user": "%(user)s",
    "experiment": "%(experiment)s",
    "task": "%(task)s",
    # Of what lies in projects, these: a condition with a list is planned and looked up quickly.
    "experiments": f"({_PROJECTS.format('experiments')})",
    "artifacts": "CASE WHEN %(artifacts)s = %(experiments)s THEN current_setting('seen.experiments')"
    f" ELSE ({_PROJECTS.format('artifacts')}) END",
}
_SET = ", ".join(
    f"set_config('{SCHEMA}.{name}', "
    f"coalesce({_VALUES.get(name, f'({_WORKSPACES.format(name)})')}, '{{}}'), false)"
    for name in SETTINGS
)
# The views make statements look costly enough to be compiled, which takes longer than they do.
NARROW = (
    f"SELECT set_config('search_path', '{SCHEMA}', false), set_config('jit', 'off', false), {_SET}"
)
"""For a connection that is to show what a :class:`Seen` says; its fields are the values, as psycopg takes
them. It holds for the projects that there are now, so each transaction begins with it."""
WIDEN = "RESET search_path; RESET jit"
"""For a connection that is to show everything again."""


def written(seen: Seen | None) -> str:
    """A line of JSON for :func:`read`; None: everything is shown."""
    if seen is None:
        return "null"
    # Most of the arrays are equal, and may be long.
    names: dict[str, list[str]] = {}
    for name, value in parameters(seen).items():
        names.setdefault(value, []).append(name)
    return json.dumps(names)


def read(line: str) -> Seen | None:
    """What :func:`written` has written. Raises TypeError and ValueError for anything else."""
    names = json.loads(line)
    return (
        None if names is None else Seen(**{one: value for value in names for one in names[value]})
    )


def parameters(seen: Seen) -> dict[str, str]:
    """The values of :data:`NARROW`."""
    return {name: getattr(seen, name) for name in SETTINGS}


def _setting(name: str) -> str:
    # One that was set back is empty. In a subselect it is read once for a statement, not for each row.
    return f"(SELECT nullif(current_setting('{SCHEMA}.{name}', true), ''))"


def _listed(column: str, of: str) -> str:
    return f"{column} IN (SELECT {SCHEMA}.listed('{of}'))"


def _in(column: str, table: str) -> str:
    return f"x.{column} IN (SELECT s.id FROM {SCHEMA}.{table} s)"


def _sees(table: str, what: str) -> str:
    """As :func:`_in` for what is rare: a function keeps its plan, and is none of the statement's."""
    return f"{SCHEMA}.sees_{table}({what})"


def _either(column: str, then: str, otherwise: str) -> str:
    return f"CASE WHEN x.{column} IS NOT NULL THEN {then} ELSE {otherwise} END"


_OF_EXPERIMENT, _OF_TRIAL = _in("experiment_id", "experiments"), _in("trial_id", "trials")
_OF_TASK, _OF_ALLOCATION = _in("task_id", "tasks"), _in("allocation_id", "allocations")
_OF_MODEL, _OF_RETRAINING = _in("model_id", "models"), _in("retraining_id", "retrainings")
_OF_PIPELINE = _in("pipeline_id", "pipelines")
_OWN = f"{_setting('user')}::int"
_OF_PROCESS = f"{{0}}.id = {_setting('experiment')}::int OR {{0}}.submitted_by = {_setting('task')}"

# A trial's task has the number of its experiment in its id, a deletion's that of the deletion. A TensorBoard
# shows what its owner sees: nobody who does not see all of it may open it.
_TASK = f"""CASE x.kind
    WHEN 'TRIAL' THEN EXISTS (
        SELECT FROM {SCHEMA}.experiments s WHERE s.id = split_part(x.id, '.', 1)::int)
    WHEN 'CHECKPOINT_GC' THEN {_sees("deletions", "split_part(x.id, '.', 2)::int")}
    WHEN 'TENSORBOARD' THEN {_listed("x.workspace_id", "tasks")} AND {SCHEMA}.sees_all_of(x.data)
    ELSE {_listed("x.workspace_id", "tasks")} END"""
# Postgres expects ten rows of unnest(), and would begin each statement with these few; it expects of this
# function what a large cluster has.
_LISTED = (
    f"CREATE FUNCTION {SCHEMA}.listed(what text) RETURNS SETOF int STABLE ROWS 1000 LANGUAGE sql"
    f" AS $$ SELECT unnest(nullif(current_setting('{SCHEMA}.' || what, true), '')::int[]) $$"
)
_FUNCTIONS = {
    "experiments": "CREATE FUNCTION {0}.sees_experiments(wanted int) RETURNS bool"
    " STABLE LANGUAGE plpgsql AS $$ BEGIN"
    " RETURN EXISTS (SELECT FROM {0}.experiments s WHERE s.id = wanted); END $$",
    "deletions": "CREATE FUNCTION {0}.sees_deletions(wanted int) RETURNS bool"
    " STABLE LANGUAGE plpgsql AS $$ BEGIN"
    " RETURN EXISTS (SELECT FROM {0}.deletions s WHERE s.id = wanted); END $$",
    "tasks": "CREATE FUNCTION {0}.sees_tasks(wanted text) RETURNS bool"
    " STABLE LANGUAGE plpgsql AS $$ BEGIN"
    " RETURN EXISTS (SELECT FROM {0}.tasks s WHERE s.id = wanted); END $$",
    "retraining_runs": "CREATE FUNCTION {0}.sees_retraining_runs(wanted bigint) RETURNS bool"
    " STABLE LANGUAGE plpgsql AS $$ BEGIN"
    " RETURN EXISTS (SELECT FROM {0}.retraining_runs s WHERE s.id = wanted); END $$",
    "trials": "CREATE FUNCTION {0}.sees_all_of(shown jsonb) RETURNS bool"
    " STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN NOT EXISTS ("
    "SELECT FROM jsonb_array_elements_text(shown -> 'experiment_ids') AS named (id)"
    " JOIN public.experiments e ON e.id = named.id::int"
    " WHERE NOT EXISTS (SELECT FROM {0}.experiments s WHERE s.id = e.id)"
    ") AND NOT EXISTS ("
    "SELECT FROM jsonb_array_elements_text(shown -> 'trial_ids') AS named (id)"
    " JOIN public.trials t ON t.id = named.id::int"
    " WHERE NOT EXISTS (SELECT FROM {0}.trials s WHERE s.id = t.id)); END $$",
}
"""By view, the function that is made after it."""

# In an order in which each can be made: a view names only earlier ones.
CONDITIONS: Mapping[str, str] = {
    "workspaces": _listed("x.id", "workspaces"),
    "projects": _listed("x.workspace_id", "projects"),
    "workspace_pins": _listed("x.workspace_id", "workspaces"),
    "project_visits": f"EXISTS (SELECT FROM {SCHEMA}.projects s WHERE s.id = x.project_id)",
    "pool_bindings": _listed("x.workspace_id", "workspaces"),
    "config_policies": f"x.workspace_id IS NULL OR {_listed('x.workspace_id', 'workspaces')}",
    "experiments": f"{_listed('x.project_id', 'experiments')} OR {_OF_PROCESS.format('x')}",
    "searches": _OF_EXPERIMENT,
    "search_events": _OF_EXPERIMENT,
    "mlflow_experiments": _OF_EXPERIMENT,
    "trials": _OF_EXPERIMENT,
    "trial_sources": _OF_TRIAL,
    "metrics": _OF_TRIAL,
    "metric_summaries": _OF_TRIAL,
    "metric_sizes": _OF_TRIAL,
    "log_policy_matches": _OF_TRIAL,
    "mlflow_runs": _OF_TRIAL,
    "mlflow_model_metrics": _OF_TRIAL,
    # Of checkpoints that a user named, perhaps of several experiments: its own.
    "deletions": _either(
        "experiment_id",
        _sees("experiments", "x.experiment_id"),
        f"EXISTS (SELECT FROM public.tasks k WHERE k.id = x.task_id AND k.owner_id = {_OWN})",
    ),
    # What was launched has a workspace; a trial's task is where its trial is, a deletion's with it.
    "tasks": _TASK,
    "allocations": _either(
        "experiment_id",
        f"EXISTS (SELECT FROM {SCHEMA}.experiments s WHERE s.id = x.experiment_id)",
        _sees("tasks", "x.task_id"),
    ),
    "legs": _OF_TASK,
    "task_files": _OF_TASK,
    "task_file_pieces": _OF_TASK,
    "task_logs": _OF_TASK,
    "task_visits": _OF_TASK,
    "log_sizes": _OF_TASK,
    "allocation_resources": _OF_ALLOCATION,
    "allocation_ports": _OF_ALLOCATION,
    "allocation_doors": _OF_ALLOCATION,
    "allocation_gathers": _OF_ALLOCATION,
    # Of deleted experiments nobody knows any more where they were.
    "erased_usage": f"x.user_id = {_OWN}",
    "checkpoints": _either(
        "experiment_id",
        "EXISTS (SELECT FROM public.experiments e WHERE e.id = x.experiment_id"
        f" AND ({_listed('e.project_id', 'artifacts')} OR {_OF_PROCESS.format('e')}))",
        _sees("tasks", "x.task_id"),
    ),
    "models": _listed("x.workspace_id", "models"),
    "model_versions": _OF_MODEL,
    "model_aliases": _OF_MODEL,
    "model_alias_history": _OF_MODEL,
    "retrainings": _OF_MODEL,
    "live_metrics": _OF_RETRAINING,
    "retraining_runs": _OF_RETRAINING,
    "pipelines": _either(
        "retraining_run_id",
        _sees("retraining_runs", "x.retraining_run_id"),
        _listed("x.workspace_id", "pipelines"),
    ),
    "pipeline_steps": _OF_PIPELINE,
    "pipeline_experiments": _OF_PIPELINE,
    "templates": _listed("x.workspace_id", "templates"),
    # They may hold secrets.
    "user_defaults": f"x.user_id = {_OWN}",
}
"""By table that holds people's things, which rows ``x`` a view has."""

OPEN = frozenset(
    {
        # The cluster itself, and who is in it.
        "agents",
        "cluster",
        "disabled_machines",
        "group_members",
        "groups",
        "page_tickets",
        "pools",
        "role_assignments",
        "slots",
        "user_sessions",
        "user_settings",
        "users",
        # Read beside what they belong to, and by nothing else.
        "kept_runs",
        "model_definitions",
        "prefect_outbox",
        "report_streams",
        "storages",
    }
)
"""The tables that a view shows whole."""


def _statements() -> Iterator[str]:
    yield _LISTED
    for name in sorted(OPEN):
        yield f"CREATE VIEW {SCHEMA}.{name} AS SELECT x.* FROM public.{name} x"
    for name, condition in CONDITIONS.items():
        yield f"CREATE VIEW {SCHEMA}.{name} AS SELECT x.* FROM public.{name} x WHERE {condition}"
        if name in _FUNCTIONS:
            yield _FUNCTIONS[name].format(SCHEMA)


def _digest() -> str:
    """Of the views' text and the columns that they show."""
    columns = [(table.name, sorted(table.c.keys())) for table in metadata.sorted_tables]
    return hashlib.sha256(repr((list(_statements()), columns)).encode()).hexdigest()


_COMMENT = sa.text("SELECT obj_description(to_regnamespace(:schema), 'pg_namespace')")


def is_made(connection: sa.Connection) -> bool:
    """True if the database has these views."""
    return connection.execute(_COMMENT, {"schema": SCHEMA}).scalar() == _digest()


def drop(connection: sa.Connection) -> None:
    """Drops the schema with its views, if it is there."""
    connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE"))


def make(connection: sa.Connection) -> None:
    """Makes the schema and its views in a database that has the newest tables and no such schema."""
    connection.execute(sa.text(f"CREATE SCHEMA {SCHEMA}"))
    for statement in _statements():
        connection.execute(sa.text(statement.replace(":", r"\:")))
    connection.execute(sa.text(f"COMMENT ON SCHEMA {SCHEMA} IS '{_digest()}'"))
