"""The reasons why an answer of the service differs from the answer of MLflow's store."""

from __future__ import annotations

import re

_NOT_KEPT = (
    "are not kept here: a look-up by name gets 404, lists are empty, and creating one is refused (403) with "
    "the advice to use a separate tracking server of MLflow"
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
    "traces": f"Traces and their annotations {_NOT_KEPT.replace('403', '400')}, or to turn tracing off.",
    "data sets": f"Data sets of evaluations {_NOT_KEPT}. The inputs of a run are kept (`log_input`).",
    "webhooks": f"MLflow's webhooks {_NOT_KEPT}.",
    "workspaces": "MLflow's workspaces are closed (403); MLflow's server answers 503 unless it was started "
    "with them.",
    "MCP servers": f"MCP servers {_NOT_KEPT}.",
    "times": "The service sets `start_time` and `end_time` when it gets the requests, and ignores the "
    "client's, because the cluster's times of its trials must be true.",
    "outputs": "A checkpoint is an output of its run from its creation; MLflow's store lists a model only "
    "after `log_outputs`, which `log_model` calls.",
    "checkpoints": "A run's artifacts have a folder `checkpoints` with the files of its checkpoints.",
    "stages": "Versions have no stages (403): MLflow itself advises `set_registered_model_alias` since 2.9. "
    "So `latest_versions` has one version, not one of each stage.",
    "copies": "A copy of a version is a version of the same checkpoint, so its model's tag names it, too; a "
    "model has no tag of prompts.",
    "other runs": "A checkpoint is the output of the run that made it: `log_outputs` of another run's "
    "checkpoint is refused (403).",
    "values": "A metric's value that is not a number, and a tag's name with a line break, are refused (400);"
    " MLflow's server accepts both.",
    "aliases": "An alias that is a number is refused (400): it would look like a version.",
    "infinities": "Infinities stay infinite; MLflow's store replaces them with the largest number.",
    "ends": "A run that ends has an `end_time` even if its client sends none, and SCHEDULED is RUNNING: a "
    "script that logs is not waiting.",
    "orders": "An order that occurs twice is refused (400); MLflow's store answers 500.",
    "default": "Scripts that name no experiment use `Default of <user>`, one for each user, which the first "
    "run creates.",
}
"""The accepted reasons by group. The suite reports a difference without a reason as a fault."""
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
    """Return the key of the reason for a different answer to the call, or an empty string without a
    reason."""
    if call in _OF_CALL:
        return _OF_CALL[call]
    name = call.partition(".")[2]
    return next((group for group, names in _GROUPS if names.search(name)), "")
