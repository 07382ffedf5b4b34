"""Pages on which an experiment can be looked at."""

from __future__ import annotations

from typing import Any

from determined.common.api import errors
from determined.common.api.session import Session
from determined.common.wire import mlflow


def in_mlflow(session: Session, experiment_id: int, config: dict[str, Any]) -> str | None:
    """The address of its trials in MLflow, of a single one's run; None: the service does not serve MLflow, or
    does not answer. ``config``: the experiment's configuration.
    """
    try:
        if "mlflow" not in session.get("/")["links"]:
            return None
        searcher = config["searcher"]
        if searcher["name"] == "single":
            given = {"limit": 1}
            trials = session.get(f"/api/v1/experiments/{experiment_id}/trials", params=given)
            if trials["trials"]:
                return session.master + mlflow.trial(experiment_id, trials["trials"][0]["id"])
    except (errors.APIException, KeyError, TypeError):
        return None
    smaller = searcher.get("smaller_is_better", True)
    return session.master + mlflow.experiment(experiment_id, searcher.get("metric"), smaller)
