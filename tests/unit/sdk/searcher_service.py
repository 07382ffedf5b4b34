"""A custom search's experiment in memory, behind a transport: its trials train at once when they get an
operation.

Keeps to the service's rules: events wait until they are answered, an answer takes its event and all before
it off the queue, an event is answered once.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import httpx

from determined.common.api import Session

URL = "http://service"


class Killed(BaseException):
    """The runner's process ends here, as by ``kill -9``: no part of it runs on."""


def metric_of(hparams: dict[str, Any], length: int) -> float:
    """A trial's metric: it improves with training, and for large ``x``."""
    return float(hparams["x"]) * (1.0 - 0.5**length)


class Experiment:
    """``fault(request)`` is called before each POST of operations is accepted, ``after`` after it."""

    def __init__(self) -> None:
        self.state = "ACTIVE"
        self.created = 0
        self.hparams: dict[str, dict[str, Any]] = {}
        self.targets: dict[str, list[int]] = {}
        self.closed: list[str] = []
        self.progress: list[float] = []
        self.queue: list[dict[str, Any]] = []
        self.last_id = 0
        self.answered: list[tuple[int, list[dict[str, Any]]]] = []
        self.before: Callable[[int], None] = lambda event_id: None
        self.after: Callable[[int], None] = lambda event_id: None
        self.refuse: str | None = None
        self.bodies: list[dict[str, Any]] = []
        self.add("initialOperations", placeholder=0)

    @property
    def session(self) -> Session:
        return Session(URL, "token", transport=httpx.MockTransport(self.handle), max_retries=0)

    def add(self, kind: str, trial: str | None = None, **fields: Any) -> int:
        self.last_id += 1
        given = {"requestId": trial} if trial else {}
        self.queue.append({"id": self.last_id, kind: given | fields})
        return self.last_id

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/api/v1/experiments":
            self.created += 1
            made = {"id": 5, "name": "n", "state": "STATE_ACTIVE", "archived": False}
            return httpx.Response(200, json={"experiment": made})
        if path.endswith("/searcher_events"):
            return httpx.Response(200, json={"searcherEvents": self.events()})
        assert path == "/api/v1/experiments/5/searcher_operations", path
        body = json.loads(request.content)
        event_id = body["triggeredByEvent"]["id"]
        self.before(event_id)
        if self.refuse is not None:
            error = {"error": {"error": self.refuse}}
            return httpx.Response(400, json=error)
        if event_id not in [event["id"] for event in self.queue]:
            error = {"error": {"error": f"event {event_id} not found"}}
            return httpx.Response(404, json=error)
        self.bodies.append(body)
        self.take(event_id, body["searcherOperations"])
        self.after(event_id)
        return httpx.Response(200, json={"skipped": []})

    def events(self) -> list[dict[str, Any]]:
        if self.state != "ACTIVE":
            inactive = {"experimentState": f"STATE_{self.state}"}
            return [{"id": -1, "experimentInactive": inactive}]
        return list(self.queue)

    def take(self, event_id: int, operations: list[dict[str, Any]]) -> None:
        self.queue = [event for event in self.queue if event["id"] > event_id]
        self.answered.append((event_id, operations))
        for operation in operations:
            ((kind, fields),) = operation.items()
            getattr(self, f"do_{kind}")(fields)

    def do_createTrial(self, fields: dict[str, Any]) -> None:
        trial = str(uuid.UUID(fields["requestId"]))
        assert trial not in self.hparams, "the same trial twice"
        self.hparams[trial] = json.loads(fields["hyperparams"])
        self.targets[trial] = []
        self.add("trialCreated", trial)

    def do_trialOperation(self, fields: dict[str, Any]) -> None:
        target = fields["validateAfter"]
        trial, length = target["requestId"], int(target["length"])
        assert trial not in self.closed
        self.targets[trial].append(length)
        self.add("trialProgress", trial, partialUnits=length / 2)
        metric = metric_of(self.hparams[trial], length)
        self.add("validationCompleted", trial, metric=metric, validateAfterLength=str(length))

    def do_closeTrial(self, fields: dict[str, Any]) -> None:
        assert fields["requestId"] not in self.closed
        self.closed.append(fields["requestId"])
        self.add("trialClosed", fields["requestId"])

    def do_setSearcherProgress(self, fields: dict[str, Any]) -> None:
        self.progress.append(fields["progress"])

    def do_shutDown(self, fields: dict[str, Any]) -> None:
        self.state = (
            "ERROR" if fields["failure"] else "CANCELED" if fields["cancel"] else "COMPLETED"
        )
