"""Addresses of MLflow's pages below the service's own, and the variables by which its client finds it."""

from __future__ import annotations

from urllib.parse import quote

HOME = "/mlflow"
BEST = "best validation/"
"""With this begins the name of a trial's best value of the searcher's metric, by which `det` names the best
trial. MLflow sorts by the last value of a metric. No group of metrics is likely to be called so."""
TRACKING_URI = "MLFLOW_TRACKING_URI"
TRACKING_TOKEN = "MLFLOW_TRACKING_TOKEN"
RUN_ID = "MLFLOW_RUN_ID"

BODY_FILE_HEADER = "x-determined-body-file"
"""From the service to MLflow's server: the path (quoted) of a file with the request's body, which is empty
then. Whoever gets it may move the file away."""
TAKES_PATH_HEADER = "x-determined-takes-path"
"""From the service to MLflow's server: a file may be answered by its path alone."""
PATH_HEADER = "x-determined-path"
"""From MLflow's server to the service: the path (quoted) of the file that is the answer, whose body is empty
then."""


def experiment(
    experiment_id: int, metric: str | None = None, smaller_is_better: bool = True
) -> str:
    """The table of its trials. ``metric``: the searcher's, by whose best value they stand; without
    one they are folded away behind their search."""
    page = f"{HOME}/#/experiments/{experiment_id}/runs"
    if not metric:
        return page
    key = quote(f"metrics.`{BEST}{metric}`", safe="")
    return f"{page}?orderByKey={key}&orderByAsc={'true' if smaller_is_better else 'false'}"


def trial(experiment_id: int, trial_id: int) -> str:
    """The run that the trial is."""
    return f"{HOME}/#/experiments/{experiment_id}/runs/{trial_id}"
