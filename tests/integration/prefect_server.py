"""The cluster's Prefect server, as a test asks it."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from tests.local_cluster import LocalCluster


class Prefect:
    """The cluster's Prefect server, by its REST API."""

    def __init__(self, cluster: LocalCluster) -> None:
        state = json.loads((cluster.data_dir / "cluster.json").read_text())
        self.url: str = state["prefect_url"]
        self.auth: str = state["prefect_auth"]
        user, password = self.auth.split(":", 1)
        self.http = httpx.Client(base_url=f"{self.url}/api", auth=(user, password), timeout=30)

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.http.post(path, json=body) if body is not None else self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def deployment(self, name: str, seconds: float = 30) -> dict[str, Any]:
        """The deployment ``flow/name``; the agent registers them shortly after it is up."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.http.get(f"/deployments/name/{name}")
            if answer.status_code != 404 or time.monotonic() > deadline:
                answer.raise_for_status()
                found: dict[str, Any] = answer.json()
                return found
            time.sleep(0.2)

    def wait(self, run_id: str, seconds: float = 90) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            run: dict[str, Any] = self.call(f"/flow_runs/{run_id}")
            if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
                return run
            assert time.monotonic() < deadline, f"still {run['state_name']} after {seconds} s"
            time.sleep(0.3)
