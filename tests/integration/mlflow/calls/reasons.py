"""The reasons why an answer of ours differs from that of MLflow's own store."""

from __future__ import annotations

import re

_NOT_KEPT = (
    "are not kept here: nothing is found by its name (404), lists are empty, and making one is refused (403) "
    "with the advice to use a tracking server of MLflow's own"
)
_GROUPS = (
    ("prompts", re.compile("prompt")),
    ("traces", re.compile("trace|span|assessment|feedback|expectation|log_issue|session")),
    ("data sets", re.compile("_dataset")),
    ("webhooks", re.compile("webhook")),
    ("workspaces", re.compile("workspace")),
    ("MCP servers", re.compile("_mcp_")),
)
REASONS = {
    "prompts": f"Prompts {_NOT_KEPT}.",
    "traces": f"Traces, and what is said of them, {_NOT_KEPT.replace('403', '400')}, or to turn tracing "
    "off.",
    "data sets": f"Data sets of evaluations {_NOT_KEPT}. What a run used is kept (`log_input`).",
    "webhooks": f"Webhooks of MLflow's {_NOT_KEPT}.",
    "workspaces": "MLflow's workspaces are closed (403); its own server answers 503 unless it was started "
    "with them.",
    "MCP servers": f"MCP servers {_NOT_KEPT}.",
    "times": "A run begins and ends when the service hears of it: `start_time` and `end_time` of the "
    "client's are not believed, as what the cluster says of its trials must be true.",
    "outputs": "A checkpoint is an output of its run from its making on; MLflow's own store lists a model "
    "once `log_outputs` has named it, which `log_model` does.",
    "checkpoints": "A run's artifacts have a folder `checkpoints` with the files of its checkpoints.",
    "stages": "Versions have no stages (403): `set_registered_model_alias` is what MLflow itself advises "
    "since 2.9. So `latest_versions` has one version, not one of each stage.",
    "copies": "A copy of a version is a version of the same checkpoint, so its model's tag names it, too; "
    "a model has no tag of prompts.",
    "other runs": "A checkpoint is the output of the run that made it: `log_outputs` of another's is "
    "refused (403).",
    "values": "A metric's value that is no number, and a tag's name with a line break, are refused (400); "
    "MLflow's own server takes both.",
    "aliases": "An alias that is a number is refused (400): it would look like a version.",
    "infinities": "Infinities stay infinite; MLflow's own store makes the largest number of them.",
    "ends": "A run that ends has an `end_time` even if its client says none, and SCHEDULED is RUNNING: a "
    "script that logs is no waiting trial.",
    "orders": "An order that is there twice is refused (400); MLflow's own store answers 500.",
    "default": "The experiment of scripts that name none is each user's own, `Default of <user>`, and is "
    "made by the first run.",
}
"""By group. Each is right: a difference without a reason here is a fault, which the suite reports."""
_OF_CALL = {
    "MlflowClient.create_run": "times",
    "MlflowClient.set_terminated": "times",
    "MlflowClient.create_logged_model": "outputs",
    "MlflowClient.list_artifacts": "checkpoints",
    "MlflowClient.transition_model_version_stage": "stages",
    "mlflow.search_registered_models": "stages",
    "mlflow.search_model_versions": "stages",
    "mlflow.search_experiments": "default",
    "mlflow.search_runs": "times",
    "mlflow.get_logged_model": "copies",
    "mlflow.search_logged_models": "copies",
    "mlflow.set_logged_model_tags": "copies",
    "mlflow.delete_logged_model_tag": "copies",
    "mlflow.log_outputs": "other runs",
    "REST.a batch is refused": "values",
    "REST.what does not exist": "aliases",
    "REST.infinities and what is not a number": "infinities",
    "REST.the life of a run": "ends",
    "REST.search: wrong orders and tokens": "orders",
}


def group_of(call: str) -> str:
    """The key of the reason for which the call may answer otherwise; empty: there is none."""
    if call in _OF_CALL:
        return _OF_CALL[call]
    name = call.partition(".")[2]
    return next((group for group, names in _GROUPS if names.search(name)), "")
