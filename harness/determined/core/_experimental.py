"""Calls that may change between releases."""

from __future__ import annotations

import logging
from typing import Any

from determined.core._connection import Connection

logger = logging.getLogger("determined.core")


class ExperimentalCoreContext:
    """Tells the service which checkpoints and models a task uses, e.g. in batch inference."""

    def __init__(self, connection: Connection, trial_id: int) -> None:
        self._connection = connection
        self._trial_id = trial_id

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """``checkpoint``: an object with ``uuid``, such as the SDK's Checkpoint."""
        self._report({"checkpointUuid": checkpoint.uuid})

    def report_task_using_model_version(self, model_version: Any) -> None:
        """``model_version``: the SDK's ModelVersion."""
        self._report(
            {
                "checkpointUuid": model_version.checkpoint.uuid,
                "modelId": model_version.model_id,
                "modelVersion": model_version.model_version,
            }
        )

    def _report(self, source: dict[str, Any]) -> None:
        kind = "TRIAL_SOURCE_INFO_TYPE_INFERENCE"
        body = {"trialId": self._trial_id, "trialSourceInfoType": kind, **source}
        post_if_offered(
            self._connection,
            "/api/v1/trial-source-info",
            {"trialSourceInfo": body},
            "what a trial uses",
        )


class DummyExperimentalCoreContext(ExperimentalCoreContext):
    """Off-cluster: logged only."""

    def __init__(self) -> None:
        pass

    def _report(self, source: dict[str, Any]) -> None:
        logger.info("this task uses %s", source)


def post_if_offered(connection: Connection, path: str, body: dict[str, Any], what: str) -> None:
    """POST to a part of the API that a service may not have.

    Raises NotImplementedError when it has not.
    """
    from determined.common.api.errors import APIException

    try:
        connection.post(path, json=body)
    except APIException as error:
        if error.status_code not in (404, 405):
            raise
        raise NotImplementedError(f"this service does not record {what}: {error}") from None
