"""At which Prefect server a flow with blocks runs, and what leaves the machine."""

from __future__ import annotations

import logging
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL, temporary_settings

from determined_flows.blocks import cluster


@pytest.mark.parametrize(("url", "times"), [(None, 1), ("http://127.0.0.1:4200/api", 0)])
def test_a_temporary_server_is_told_of_once_a_run(
    url: str | None,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = SimpleNamespace(flow_run=SimpleNamespace(id=object()))
    monkeypatch.setattr(FlowRunContext, "get", lambda: run)
    monkeypatch.setattr(cluster, "get_run_logger", lambda: logging.getLogger("run"))
    block = cluster.DeterminedCluster(master="http://127.0.0.1:1", token="t")  # type: ignore[arg-type]
    with temporary_settings(
        updates={PREFECT_API_URL: url} if url else None,
        restore_defaults=None if url else {PREFECT_API_URL},
    ):
        for _ in range(2):
            with block.session():
                pass
    assert caplog.text.count('eval "$(det prefect env)"') == times


@pytest.mark.parametrize("package", ["determined_flows", "determined_deployments"])
def test_later_imports_send_nothing(package: str) -> None:
    """Prefect's temporary server, and MLflow's client, take it from the environment."""
    code = f"import os, {package}; print(*(os.environ[n] for n in {NAMES!r}))"
    done = subprocess.run([sys.executable, "-c", code], env={}, text=True, capture_output=True)
    assert done.stdout.split() == ["true", "true", "false"], done.stderr
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={"DO_NOT_TRACK": "1"}, text=True, capture_output=True,
    )  # fmt: skip
    assert told.stdout.split() == ["1", "true", "false"], told.stderr


NAMES = ("DO_NOT_TRACK", "MLFLOW_DISABLE_TELEMETRY", "PREFECT_SERVER_ANALYTICS_ENABLED")
