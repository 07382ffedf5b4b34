"""The cluster's Prefect server, as a test asks it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.local_cluster import LocalCluster
from tests.waiting import TIMEOUT_S, until


class Prefect:
    """The cluster's Prefect server, by its REST API."""

    def __init__(self, cluster: LocalCluster) -> None:
        state = json.loads((cluster.data_dir / "cluster.json").read_text())
        self.url: str = state["prefect_url"]
        self.auth: str = state["prefect_auth"]
        user, password = self.auth.split(":", 1)
        self.http = httpx.Client(
            base_url=f"{self.url}/api", auth=(user, password), timeout=TIMEOUT_S
        )

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = self.http.post(path, json=body) if body is not None else self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def deployment(self, name: str) -> dict[str, Any]:
        """The deployment ``flow/name``; the agent registers them shortly after it is up."""

        def known() -> dict[str, Any] | None:
            answer = self.http.get(f"/deployments/name/{name}")
            return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

        return until(f"the deployment {name}", known)

    def wait(self, run_id: str) -> dict[str, Any]:
        """The flow run, once it has ended."""

        def run() -> dict[str, Any]:
            return dict(self.call(f"/flow_runs/{run_id}"))

        ends = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
        until("the end of the flow run", lambda: run()["state_type"] in ends, show=run)
        return run()
