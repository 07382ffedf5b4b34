"""Many small experiments at once, for tests of their ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from determined.common.api import Session, authentication
from determined.experimental import Determined
from tests.local_cluster import LocalCluster

CONFIG = """\
name: {name}
entrypoint: {entrypoint}
hyperparameters: {{}}
searcher: {{name: single, metric: x, max_length: 1}}
max_restarts: {max_restarts}
"""

GOOD = """
import determined as det
with det.core.init() as core_context:
    for op in core_context.searcher.operations():
        core_context.train.report_validation_metrics(op.length, {"x": 1.0})
        op.report_completed(1.0)
print("the end")
"""
"""A script that does what is asked for, to be appended to."""


@dataclass(frozen=True)
class Case:
    """A model directory and its configuration; ``more`` is further YAML."""

    files: Mapping[str, str | bytes] = field(default_factory=dict)
    entrypoint: str = "python3 script.py"
    more: str = ""
    max_restarts: int = 0

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """The configuration's path and the model directory's."""
        model = folder / name
        model.mkdir(parents=True)
        for path, content in self.files.items():
            (model / path).parent.mkdir(parents=True, exist_ok=True)
            (model / path).write_bytes(content.encode() if isinstance(content, str) else content)
        config = folder / f"{name}.yaml"
        values = {"entrypoint": self.entrypoint, "max_restarts": self.max_restarts}
        config.write_text(CONFIG.format(name=name, **values) + self.more)
        return config, model


def script(text: str, **kwargs: Any) -> Case:
    """A model directory with just ``script.py``."""
    return Case({"script.py": text}, **kwargs)


@dataclass(frozen=True)
class Outcome:
    """The end of the one trial of an experiment; ``logs`` are the lines it wrote, as REST gives them."""

    experiment_id: int
    state: str
    reason: str
    trial: Mapping[str, Any]
    logs: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """The logs' lines, joined."""
        return "".join(entry["log"] for entry in self.logs)

    def lines(self, stdtype: str) -> list[str]:
        """The text written to stdout, or stderr."""
        return [entry["log"].rstrip("\n") for entry in self.logs if entry["stdtype"] == stdtype]


def client(cluster: LocalCluster) -> Determined:
    """The SDK, logged in, without a file in the home directory of the tests' user."""
    record = json.loads((cluster.data_dir / "cluster.json").read_text())
    url, password = record["master_url"], record["passwords"]["determined"]
    return Determined._with_session(
        Session(url, authentication.new_token(url, "determined", password))
    )


def outcomes(cluster: LocalCluster, folder: Path, cases: Mapping[str, Case]) -> dict[str, Outcome]:
    """Submits all, then waits for each; the cluster works on as many as it has slots."""
    sdk = client(cluster)
    submitted = {
        name: sdk.create_experiment(*case.write(folder, name)) for name, case in cases.items()
    }
    found = {}
    for name, experiment in submitted.items():
        state = experiment.wait(interval=0.1)
        (trial,) = experiment.get_trials()
        details = sdk._session.get(f"/api/v1/trials/{trial.id}")["trial"]
        entries = sdk._session.stream(f"/api/v1/trials/{trial.id}/logs")
        described = sdk._session.get(f"/api/v1/experiments/{experiment.id}")["experiment"]
        found[name] = Outcome(
            experiment.id,
            state.name,
            described["reason"] or "",
            details,
            list(entries),
        )
    return found
