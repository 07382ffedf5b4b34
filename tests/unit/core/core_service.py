"""A service in memory that answers a training process, and the trial it knows."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import orjson

from determined._info import ClusterInfo, TrialInfo


class FakeService:
    """Answers a training process as the service does; keeps the requests.

    ``before`` may answer a request first: (method, path, body) → response, exception or None.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[tuple[str, str, Any]] = []
        self.reports: list[dict[str, Any]] = []
        self.batches: list[int] = []
        self.last_seq: dict[str, int] = {}
        self.checkpoints: dict[str, dict[str, Any]] = {}
        self.lengths: list[int] = []
        self.completed: list[tuple[int, Any]] = []
        self.best: float | None = None
        self.metadata: dict[str, Any] = {}
        self.preempt = threading.Event()
        self.before: Callable[[str, str, Any], httpx.Response | None] = lambda *_: None
        # After the request had its effect: the answer is lost on the way.
        self.after: Callable[[str, str, Any], httpx.Response | None] = lambda *_: None

    def paths(self, method: str | None = None) -> list[str]:
        return [path for kind, path, _ in self.calls if method in (None, kind)]

    def body(self, ending: str) -> Any:
        """The last body sent to a path that ends so."""
        return [body for _, path, body in self.calls if path.endswith(ending)][-1]

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = orjson.loads(request.content) if request.content else None
        path = request.url.path
        with self.lock:
            self.calls.append((request.method, path, body))
        early = self.before(request.method, path, body)
        if early is not None:
            return early
        if path.endswith("/signals/preemption"):
            if float(request.url.params["timeout_s"]) > 0:
                self.preempt.wait(2)
            return httpx.Response(200, json={"preempt": self.preempt.is_set()})
        with self.lock:
            answer = self.route(request.method, path, body)
        return self.after(request.method, path, body) or answer

    def route(self, method: str, path: str, body: Any) -> httpx.Response:
        if path.endswith("/metrics/batch"):
            if body["seq"] > self.last_seq.get(body["stream"], 0):
                self.last_seq[body["stream"]] = body["seq"]
                self.reports += body["reports"]
                self.batches.append(len(body["reports"]))
            return httpx.Response(200, json={"stored": len(body["reports"])})
        if path.endswith("/searcher/operation"):
            done = len(self.completed) == len(self.lengths)
            length = self.lengths[min(len(self.completed), len(self.lengths) - 1)]
            op = {"validateAfter": {"length": str(length)}}
            return httpx.Response(200, json={"op": op, "completed": done})
        if path.endswith("/searcher/completed_operation"):
            self.completed.append((body["op"]["length"], body["searcherMetric"]))
        elif path.endswith("best_searcher_validation_metric"):
            if self.best is None:
                return refusal(404, "no trial of experiment 1 has reported a validation yet")
            return httpx.Response(200, json={"metric": self.best})
        elif path == "/api/v1/checkpoints" and method == "POST":
            self.checkpoints[body["uuid"]] = body
        elif path == "/api/v1/checkpoints":
            for checkpoint in body["checkpoints"]:
                self.checkpoints[checkpoint["uuid"]]["resources"] = {}
        elif found := re.fullmatch(r"/api/v1/checkpoints/(.*)", path):
            if found[1] not in self.checkpoints:
                return refusal(404, f"checkpoint {found[1]} does not exist")
            return httpx.Response(200, json={"checkpoint": self.checkpoints[found[1]]})
        elif path.endswith("/metadata") and "/runs/" in path:
            self.metadata = body["metadata"] if body else self.metadata
            return httpx.Response(200, json={"metadata": self.metadata})
        elif path in ("/api/v1/webhooks/custom", "/api/v1/trial-source-info"):
            return refusal(404, "not found")
        return httpx.Response(200, json={})


def refusal(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": 3, "reason": "Bad", "error": message}})


def ended(*_: Any) -> httpx.Response:
    return refusal(409, "allocation 1.x.1 has ended")


def make_info(config: dict[str, Any] | None = None) -> ClusterInfo:
    trial = TrialInfo(7, 3, 11, {"lr": 0.1}, config or {}, trial_run_id=2)
    return ClusterInfo(
        "http://service",
        "cluster",
        "agent",
        [0],
        "3.r",
        "3.r.2",
        "token",
        "TRIAL",
        trial_info=trial,
    )
