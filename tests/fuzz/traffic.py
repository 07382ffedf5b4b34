"""Requests: a valid one for each route, and its hostile variants."""

from __future__ import annotations

import copy
import json
import random
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz import hostile
from tests.integration.service_api.test_who_may import REQUESTS, Mine

WAITS = ("rendezvous", "all_gather", "signals/preemption", "searcher/operation", "searcher_events")
"""Routes that answer when something happens."""
CONFIG = {
    "name": "fuzzed",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "random", "metric": "loss", "max_trials": 4, "max_length": 100},
    "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3}},
    "labels": ["a"],
    "log_policies": [{"pattern": "x+", "action": "cancel_retries"}],
    "resources": {"slots_per_trial": 1},
}
FILE = {"path": "train.py", "type": 48, "content": "aGk=", "mode": 420}


@dataclass
class Request:
    """``body``: the bytes to send."""

    method: str
    url: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    waits: bool = False

    def __str__(self) -> str:
        shown = "" if self.body is None else f" {self.body[:200]!r} ({len(self.body)} bytes)"
        return f"{self.method} {self.url[:300]} {self.headers or ''}{shown}"


BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/api/v1/auth/login"): {"username": "admin", "password": "x", "isHashed": False},
    ("POST", "/api/v1/users"): {"user": {"username": "new", "admin": False}, "password": "x"},
    ("POST", "/api/v1/experiments/{experiment_id}/file"): {"path": "train.py"},
    ("POST", "/searcher/preview"): CONFIG,
    ("POST", "/api/v1/models"): {
        "name": "new",
        "metadata": {"a": [1]},
        "labels": ["a"],
        "tags": {"a": "b"},
        "requestId": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    },
    ("POST", "/api/v1/pipelines"): {
        "pipeline": {
            "name": "new",
            "steps": [
                {
                    "name": "a",
                    "experiment": {
                        "entrypoint": "python3 train.py",
                        "hyperparameters": {"x": 1},
                        "searcher": {
                            "name": "single",
                            "metric": "loss",
                            "max_length": {"batches": 1},
                        },
                    },
                    "for_each": [1],
                    "with": {"hyperparameters.y": "${item}"},
                }
            ],
        },
        "modelDefinitions": {},
    },
    ("POST", "/internal/v1/agents/{agent_id}/register"): {
        "session": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
        "slots": [{"id": 0, "device": {"type": "cuda", "uuid": "a"}}],
        "wire": 1,
    },
    ("POST", "/internal/v1/agents/{agent_id}/work"): {
        "session": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
        "running": ["a"],
        "timeout_s": 0.01,
        "wire": 1,
    },
    ("POST", "/internal/v1/allocations/{allocation_id}/running"): {"pid": 1, "host": "a"},
    ("POST", "/internal/v1/allocations/{allocation_id}/exit"): {"exit_code": 1, "reason": "a"},
    ("POST", "/internal/v1/trials/{trial_id}/damaged_checkpoint"): {
        "uuid": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
        "reason": "a",
    },
    ("POST", "/internal/v1/experiments/{experiment_id}/search/attach"): {
        "driver": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11"
    },
    ("POST", "/internal/v1/experiments/{experiment_id}/search/commit"): {
        "driver": "3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
        "last_event_id": 0,
        "operations": [{"type": "set_progress", "progress": 0.5}],
        "snapshot": {},
        "operations_digest": "a",
        "progress": 0.1,
    },
}


def _in_workspace(**values: Any) -> Callable[[Mine], Any]:
    return lambda mine: {**copy.deepcopy(values), "workspaceId": mine.workspace_id}


IN_PLACES: dict[tuple[str, str], Callable[[Mine], Any]] = {
    ("POST", "/api/v1/workspaces"): lambda mine: {"name": "new", "defaultComputePool": "default"},
    ("POST", "/api/v1/workspaces/{workspace_id}/projects"): lambda mine: {
        "name": "new",
        "description": "a",
        "key": "NEW",
    },
    ("POST", "/api/v1/templates/{template_name}"): _in_workspace(config={"max_restarts": 1}),
    **{
        ("POST", f"/api/v1/{kind}"): _in_workspace(
            config={"description": "a", "resources": {"slots": 0}, **more}
        )
        for kind, more in {
            "commands": {"entrypoint": ["true"]},
            "notebooks": {},
            "shells": {},
        }.items()
    },
    ("POST", "/api/v1/tensorboards"): lambda mine: {
        "experimentIds": [mine.leg.experiment_id],
        "trialIds": [mine.leg.trial_id],
        "workspaceId": mine.workspace_id,
    },
    ("POST", "/api/v1/generic-tasks"): lambda mine: {
        "config": "entrypoint: x",
        "projectId": mine.project_id,
        "parentId": mine.tasks.get("tasks"),
    },
    ("POST", "/api/v1/tokens"): lambda mine: {
        "userId": mine.user_id,
        "lifespan": "1h",
        "description": "a",
    },
    ("POST", "/api/v1/users/setting"): lambda mine: {
        "settings": [{"key": "a", "value": "b", "storagePath": "c"}]
    },
    ("POST", "/api/v1/groups/search"): lambda mine: {
        "name": "g",
        "userId": mine.user_id,
        "limit": 5,
    },
    ("POST", "/api/v1/roles/search"): lambda mine: {"limit": 5},
    ("POST", "/api/v1/roles/search/by-assignability"): lambda mine: {
        "workspaceId": mine.workspace_id,
        "limit": 5,
    },
    ("POST", "/api/v1/roles/search/by-ids"): lambda mine: {"roleIds": [1, 5]},
    ("POST", "/api/v1/tasks/{task_id}/visits"): lambda mine: {"port": "", "path": "/"},
}
"""Bodies that name the place of what is made, or whom they ask about."""


def _submission(draw: random.Random) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    if draw.random() < 0.7:
        config = mutate(draw, config)
    # JSON is YAML, except for some characters.
    text = json.dumps(config) if draw.random() < 0.9 else hostile.text(draw)
    return {
        "config": text,
        "modelDefinition": [copy.deepcopy(FILE)],
        "activate": False,
        "validateOnly": draw.random() < 0.5,
        "unmanaged": draw.random() < 0.2,
        "parentId": None,
    }


def mutate(draw: random.Random, given: Any, depth: int = 0) -> Any:
    """``given`` with one part replaced, removed, added or repeated."""
    if isinstance(given, dict) and given and draw.random() < 0.85:
        key = draw.choice(sorted(given))
        roll = draw.random()
        if roll < 0.1:
            return {name: item for name, item in given.items() if name != key}
        if roll < 0.2:
            return given | {hostile.text(draw): hostile.value(draw)}
        return given | {key: mutate(draw, given[key], depth + 1)}
    if isinstance(given, list) and given and draw.random() < 0.7:
        place = draw.randrange(len(given))
        if draw.random() < 0.1:
            return given * 40
        return [*given[:place], mutate(draw, given[place], depth + 1), *given[place + 1 :]]
    if isinstance(given, bool | str | type(None)) or draw.random() < 0.3:
        return hostile.value(draw)
    return hostile.integer(draw) if isinstance(given, int) else hostile.value(draw)


class Traffic:
    """Draws requests to the routes of an OpenAPI document."""

    def __init__(self, openapi: dict[str, Any], draw: random.Random) -> None:
        self.draw = draw
        self.routes = [
            (method.upper(), path, operation)
            for path, methods in openapi["paths"].items()
            for method, operation in methods.items()
        ]

    def next(self, mine: Mine) -> Request:
        """A request about ``mine``, more or less."""
        draw = self.draw
        method, path, operation = draw.choice(self.routes)
        if path.endswith("/plot") and draw.random() < 0.9:
            # A page takes a core for seconds.
            return self.next(mine)
        if draw.random() < 0.01:
            method = draw.choice(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
        request = Request(method, self._url(path, operation, mine))
        request.waits = any(word in path for word in WAITS)
        if method in ("POST", "PUT", "PATCH", "DELETE"):
            request.body = self._body(method, path, operation, mine)
            request.headers["Content-Type"] = "application/json"
            if draw.random() < 0.03:
                request.headers["Content-Type"] = draw.choice(["text/plain", "", "a/b;c=\x7f"])
        if draw.random() < 0.02:
            request.headers["Content-Encoding"] = "gzip"
        if draw.random() < 0.02:
            request.headers["Cookie"] = draw.choice(
                [
                    "determined-run=1.1",
                    "determined-run=999999999.999999999",
                    "determined-run=x",
                    "a=\xff",
                ]
            )
        return request

    def _url(self, path: str, operation: dict[str, Any], mine: Mine) -> str:
        draw = self.draw
        known = mine.path | {
            "task_id": mine.leg.task_id,
            "username": "determined",
            "agent_id": "agent-1",
            "external_id": "a",
            "hash": "00",
            "deletion_id": 1,
            "key": "x",
        }
        query = []
        for parameter in operation.get("parameters", []):
            name, where = parameter["name"], parameter["in"]
            if where == "path":
                value = known.get(name, 1)
                if draw.random() < 0.25:
                    value = hostile.text(draw) if draw.random() < 0.4 else hostile.integer(draw)
                path = path.replace(f"{{{name}}}", _quoted(value))
                path = path.replace(f"{{{name}:path}}", _quoted(value))
            elif where == "query" and (parameter.get("required") or draw.random() < 0.4):
                query += [f"{name}={_quoted(one)}" for one in self._parameter(name)]
        if any(word in path for word in WAITS) or "search/" in path:
            query.append("timeout_s=0.05")
        return path + ("?" + "&".join(query) if query else "")

    def _parameter(self, name: str) -> list[Any]:
        draw = self.draw
        good: dict[str, list[Any]] = {
            "limit": [0, -1, -2, 5],
            "offset": [0, -3, 2],
            "orderBy": ["ORDER_BY_ASC", "ORDER_BY_DESC"],
            "sortBy": ["SORT_BY_ID", "SORT_BY_NAME", "SORT_BY_STATE"],
            "states": ["STATE_ACTIVE"],
            "searchText": ["hi", "(a+)+$", "[", "a{1,300}"],
            "enableRegex": ["true"],
            "trialIds": [1, 2],
            "driver": ["3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11"],
            "follow": ["false"],
        }
        if name == "follow":
            return ["false"]
        count = draw.choice([1, 1, 1, 2, 30])
        if name in good and draw.random() < 0.6:
            return [draw.choice(good[name]) for _ in range(count)]
        return [hostile.scalar(draw) for _ in range(count)]

    def _body(self, method: str, path: str, operation: dict[str, Any], mine: Mine) -> bytes | None:
        draw = self.draw
        if draw.random() < 0.04:
            return hostile.raw_body(draw)
        given: Any
        if path in ("/api/v1/experiments", "/api/v1/experiments/by-external-id/{external_id}"):
            given = _submission(draw)
        elif (method, path) in BODIES:
            given = copy.deepcopy(BODIES[method, path])
        elif (method, path) in IN_PLACES:
            given = IN_PLACES[method, path](mine)
        elif (method, path) in REQUESTS:
            given = REQUESTS[method, path].body(mine)
        else:
            content = operation.get("requestBody", {}).get("content", {})
            given = content.get("application/json", {}).get("example", {})
        if draw.random() < 0.06:
            given = hostile.value(draw)
        elif draw.random() < 0.85:
            for _ in range(draw.choice([1, 1, 2])):
                given = mutate(draw, given)
        return json.dumps(given, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, int) and abs(value) > 10**100:
        value = "1" + "0" * 400
    return urllib.parse.quote(str(value).encode("utf-8", "surrogatepass"), safe="")[:4000]
