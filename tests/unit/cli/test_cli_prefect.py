"""`det prefect env`: a shell's variables for the local cluster's Prefect."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Det

NOT_SENT = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a local cluster, with a password that a shell would read as something else."""
    monkeypatch.delenv("DET_MASTER")
    path = tmp_path / "data" / "cluster.json"
    path.parent.mkdir()
    path.write_text(
        json.dumps(
            {
                "cluster_id": "c",
                "cluster_name": "n",
                "master_url": "http://127.0.0.1:8081",
                "prefect_url": "http://127.0.0.1:4201",
                "passwords": {"determined": "p"},
                "prefect_auth": "determined:$HOME 'x\"",
            }
        )
    )
    return path


def test_a_shell_that_evaluates_it_has_address_and_password(det: Det, record: Path) -> None:
    result = det("prefect", "env")
    assert result.exit_code == 0, result.output
    shell = subprocess.run(
        ["sh", "-c", 'eval "$1"; env', "sh", result.stdout],
        env={"PATH": os.environ["PATH"]}, text=True, capture_output=True, check=True,
    )  # fmt: skip
    found = dict(line.split("=", 1) for line in shell.stdout.splitlines())
    assert (
        found.items()
        >= {
            "PREFECT_API_URL": "http://127.0.0.1:4201/api",
            "PREFECT_API_AUTH_STRING": "determined:$HOME 'x\"",
            **NOT_SENT,
        }.items()
    )


def test_the_local_cluster_may_be_named(det: Det, record: Path) -> None:
    assert "127.0.0.1:4201" in det("-m", "127.0.0.1:8081", "prefect", "env").stdout


def test_of_another_cluster_it_prints_a_reference_only(det: Det, record: Path) -> None:
    result = det("-m", "http://other:8080", "prefect", "env")
    assert result.exit_code == 1
    assert result.stdout == ""
    for word in ("http://other:8080", "-m", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        assert word in result.stderr


def test_without_a_cluster_it_says_so(det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_MASTER")
    result = det("prefect", "env")
    assert result.exit_code == 1
    assert "no local cluster" in result.stderr
