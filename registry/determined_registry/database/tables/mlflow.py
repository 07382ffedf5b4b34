"""The data of MLflow's clients that has no column elsewhere."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from determined_registry.database.tables.base import TS, json, metadata

# Data of MLflow's clients about experiments and runs (determined_registry.mlflow). Everything else that
# MLflow shows is read from the tables above.
mlflow_experiments = sa.Table(
    "mlflow_experiments",
    metadata,
    sa.Column(
        "experiment_id", sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
    ),
    # Under which an MLflow client made it and finds it again. NULL: it was made otherwise.
    sa.Column("name", sa.Text, unique=True),
    # {key: text}
    sa.Column("tags", JSONB, nullable=False, server_default=json("{}")),
    # When an MLflow client has last renamed, hidden or shown it. NULL: none has.
    sa.Column("updated_at", TS),
)

mlflow_runs = sa.Table(
    "mlflow_runs",
    metadata,
    sa.Column("trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True),
    # An MLflow client started the trial: only that client gives signs of life, and metrics have the client's
    # names, without their group.
    sa.Column("native", sa.Boolean, nullable=False, server_default=sa.false()),
    # NULL: a name is made from the trial's number.
    sa.Column("name", sa.Text),
    # What MLflow calls parameters: {key: text}. Of a native one they are the trial's hyperparameters instead.
    sa.Column("params", JSONB, nullable=False, server_default=json("{}")),
    sa.Column("tags", JSONB, nullable=False, server_default=json("{}")),
    # The data sets that the run said it used, as MLflow's JSON.
    sa.Column("inputs", JSONB, nullable=False, server_default=json("[]")),
    # Files in checkpoint storage that belong to no checkpoint: {path: bytes}
    sa.Column("artifacts", JSONB, nullable=False, server_default=json("{}")),
    # Hidden since then, as MLflow's clients delete runs. NULL: shown.
    sa.Column("deleted_at", TS),
)

# Metrics that runs report of logged models: each point is stored once, as in MLflow's store.
mlflow_model_metrics = sa.Table(
    "mlflow_model_metrics",
    metadata,
    sa.Column(
        "checkpoint_uuid", sa.ForeignKey("checkpoints.uuid", ondelete="CASCADE"), primary_key=True
    ),
    # That of the run that says it, which may be another than the model's own.
    sa.Column(
        "trial_id", sa.ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True, index=True
    ),
    sa.Column("key", sa.Text, primary_key=True),
    # Milliseconds since 1970.
    sa.Column("moment", sa.BigInteger, primary_key=True),
    sa.Column("step", sa.BigInteger, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    # NULL: of no data set.
    sa.Column("dataset_name", sa.Text),
    sa.Column("dataset_digest", sa.Text),
)
