"""A tracking server and its answers, without the parts that differ between servers."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.entities._mlflow_object import _MlflowObject
from mlflow.exceptions import MlflowException

THEN = 1_600_000_000_000
"""Milliseconds since 1970 of what the calls log."""
EXPERIMENT, MODEL = "compared", "Net"
_IDS = frozenset(
    {
        *("run_id", "run_uuid", "experiment_id", "model_id", "source_run_id", "model_uuid"),
        *("mlflow.parentRunId", "dataset_id", "webhook_id", "trace_id", "prompt_id"),
    }
)
_ADDRESSES = frozenset({"artifact_uri", "artifact_location", "source", "model_uri"})
_USERS = frozenset({"user_id", "mlflow.user", "created_by", "last_updated_by", "user"})
# Parts of an answer that depend on the machine and the time, not on the request.
_UNSAID = frozenset({"mlflow.source.name", "mlflow.source.git.commit", "mlflow.log-model.history"})
_DAY_MS = 24 * 3600 * 1000


class Side:
    """A tracking server, and the objects that the calls have made there.

    ``experiment`` has the runs ``run`` (with metrics, parameters, tags), ``child`` and ``owner``, whose
    ``model`` is a logged model with one file, registered as version 1 of :data:`MODEL`. ``folder`` holds
    files to send.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder
        self.client = MlflowClient(uri)
        self.experiment = ""
        self.run = ""
        self.child = ""
        self.owner = ""
        self.model = ""
        self.kept: dict[str, Any] = {}

    def prepare(self) -> None:
        """Make the objects that the calls read."""
        client = self.client
        self.experiment = client.create_experiment(EXPERIMENT)
        self.run = self.new_run("one", {"team": "vision"})
        client.log_batch(
            self.run,
            [Metric("loss", 1 / (step + 1), THEN + step, step) for step in range(5)],
            [Param("lr", "0.1"), Param("act", "relu")],
            [RunTag("stage", "first")],
        )
        self.child = self.new_run("two", {"mlflow.parentRunId": self.run})
        client.log_batch(
            self.child, [Metric("loss", 0.5, THEN, 0), Metric("odd", math.nan, THEN, 0)]
        )
        client.set_terminated(self.child, "FAILED")
        (self.folder / "sent" / "deep").mkdir(parents=True, exist_ok=True)
        (self.folder / "sent" / "a.txt").write_text("ay")
        (self.folder / "sent" / "deep" / "b.txt").write_text("bee")
        client.log_artifact(self.run, str(self.folder / "sent" / "a.txt"))
        self.owner = self.new_run("owner")
        self.model = self.new_model("first")
        client.create_registered_model(MODEL, tags={"team": "vision"}, description="a net")
        self.new_version()

    def new_run(self, name: str, tags: Mapping[str, str] | None = None) -> str:
        """The id of a new run in the experiment."""
        made = self.client.create_run(self.experiment, run_name=name, tags=dict(tags or {}))
        return str(made.info.run_id)

    def new_model(self, name: str) -> str:
        """The id of a complete logged model of ``owner``."""
        made = self.client.create_logged_model(self.experiment, name, self.owner)
        self.client.log_model_artifact(made.model_id, str(self.folder / "sent" / "a.txt"))
        return str(self.client.finalize_logged_model(made.model_id, "READY").model_id)

    def new_version(self) -> str:
        """A version of the registered model."""
        made = self.client.create_model_version(
            MODEL, f"models:/{self.model}", model_id=self.model, run_id=self.owner
        )
        return str(made.version)

    def tags(self) -> Any:
        return self.client.get_run(self.run).data.tags


Call = Callable[[Side], Any]


def answer(call: Call, side: Side) -> Any:
    """The answer to the call, as JSON; a refusal with its code."""
    try:
        return json.loads(json.dumps(plain(call(side))))
    except MlflowException as refusal:
        return {"refused": refusal.error_code, "message": _first_line(refusal.message)}
    except Exception as error:  # Any exception counts as the answer.
        return {"refused": type(error).__name__, "message": _first_line(str(error))}


def _first_line(text: str) -> str:
    found = (text or "").strip().splitlines()
    return found[0][:400] if found else ""


def plain(value: Any, field: str = "") -> Any:
    """The answer as JSON holds it. Ids, addresses, users and the present time become placeholders, because
    they differ between servers."""
    if field in _UNSAID:
        return "<own>"
    if field in _IDS and value is not None and not isinstance(value, list | dict):
        return "<id>" if value else value
    if field in _ADDRESSES and isinstance(value, str):
        return "<address>" if value else value
    if field in _USERS and isinstance(value, str):
        return "<user>"
    if isinstance(value, _MlflowObject):
        return {
            name: plain(one, name)
            for name, one in value
            if one is not None and not name.startswith("_")
        }
    if isinstance(value, pd.DataFrame):
        return {
            "columns": sorted(value.columns),
            "rows": [
                {name: plain(one, name) for name, one in row.items()}
                for row in value.to_dict("records")
            ],
        }
    if isinstance(value, Mapping):
        return {
            str(name): plain(one, str(name))
            for name, one in value.items()
            if not str(name).startswith("mlflow.source.")
        }
    if isinstance(value, list | tuple | set):
        return [plain(one) for one in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value is pd.NaT or isinstance(value, bool):
        return None if value is pd.NaT else value
    if isinstance(value, datetime.datetime):
        value = round(value.timestamp() * 1000)
    if isinstance(value, int):
        return "<now>" if abs(value - time.time() * 1000) < _DAY_MS else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


@contextlib.contextmanager
def active(side: Side, name: str = "active") -> Iterator[Any]:
    """A run in the experiment that the functions of ``mlflow`` log to."""
    with mlflow.start_run(experiment_id=side.experiment, run_name=name) as run:
        yield run
