"""The role as which MLflow's server reads: what it shows, and nothing else.

It may read these tables, and the views of them that hold what one user sees
(:mod:`determined_registry.database.seen`): which of both, the service says with each request."""

from __future__ import annotations

import sqlalchemy as sa

from determined_registry.database import seen
from determined_registry.database.migrate import engine_url

READS = (
    "checkpoints",
    "cluster",
    "experiments",
    "metric_summaries",
    "metrics",
    "mlflow_experiments",
    "mlflow_model_metrics",
    "mlflow_runs",
    "model_aliases",
    "model_versions",
    "models",
    "tasks",
    "trials",
)
COLUMNS = {
    "projects": ("id", "workspace_id", "name"),
    "users": ("id", "username"),
    "workspaces": ("id", "name"),
}
"""Of these tables these columns alone: there are passwords and keys beside them."""


def grant(db_url: str, role: str) -> None:
    """Gives ``role`` these rights in the database ``db_url``, and takes all others on tables there.

    ``db_url`` is the tables' owner's. All changes are made at once; the same rights again change nothing.
    Raises sqlalchemy.exc.ProgrammingError where there is no such role.
    """
    engine = sa.create_engine(engine_url(db_url), poolclass=sa.NullPool)
    with engine.begin() as connection:
        # Two that grant at once would be refused ("tuple concurrently updated").
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('mlflow_role'))"))
        name = connection.dialect.identifier_preparer.quote(role)
        schemas = ("public", seen.SCHEMA)
        statements = [f"GRANT USAGE ON SCHEMA {seen.SCHEMA} TO {name}"]
        statements += [
            f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM {name}" for schema in schemas
        ]
        # A right to columns outlasts the revocation of the table's.
        statements += [
            f"REVOKE ALL ({', '.join(COLUMNS[table])}) ON {schema}.{table} FROM {name}"
            for schema in schemas
            for table in COLUMNS
        ]
        for schema in schemas:
            tables = ", ".join(f"{schema}.{table}" for table in READS)
            statements.append(f"GRANT SELECT ON {tables} TO {name}")
            statements += [
                f"GRANT SELECT ({', '.join(columns)}) ON {schema}.{table} TO {name}"
                for table, columns in COLUMNS.items()
            ]
        for statement in statements:
            connection.execute(sa.text(statement))
