"""A service in memory, behind an httpx transport, for the SDK and the CLI in these tests."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import httpx

from determined.common.api.authentication import salt_and_hash
from tests.unit.sdk.served_files import ServedFiles

URL = "http://fake:8080"

CONFIG = {
    "name": "digits",
    "entrypoint": "python3 train.py",
    "searcher": {
        "name": "random",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_trials": 2,
        "max_length": {"batches": 10},
    },
    "hyperparameters": {"lr": {"type": "double", "minval": 0.1, "maxval": 1.0}},
}

Handler = Callable[..., Any]


def experiment(id: int = 1, state: str = "RUNNING", **more: Any) -> dict[str, Any]:
    """The JSON of an experiment."""
    return {
        "id": id,
        "name": "digits",
        "state": f"STATE_{state}",
        "config": copy.deepcopy(CONFIG),
        "archived": False,
        "labels": ["a"],
        "username": "determined",
        "startTime": "2026-01-02T03:04:05.678Z",
        "progress": 0.5,
        "numTrials": 0,
        "projectId": 1,
        "resourcePool": "default",
        **more,
    }


def trial(id: int, state: str = "RUNNING", metric: float | None = None, **more: Any) -> Any:
    """The JSON of a trial."""
    return {
        "id": id,
        "experimentId": 1,
        "state": f"STATE_{state}",
        "hparams": {"lr": id / 10},
        "searcherMetricValue": metric,
        "restarts": 0,
        "totalBatchesProcessed": 10,
        "startTime": "2026-01-02T03:04:05Z",
        "summaryMetrics": {"validation_metrics": {"accuracy": {"count": 1, "max": "Infinity"}}},
        **more,
    }


def checkpoint(uuid: str, trial_id: int, metric: float | str | None, **more: Any) -> Any:
    """The JSON of a checkpoint."""
    metrics = {} if metric is None else {"avgMetrics": {"accuracy": metric, "loss": 1.0}}
    return {
        "uuid": uuid,
        "state": "STATE_COMPLETED",
        "resources": {"model/": "0", "model/weights": "3"},
        "metadata": {"steps_completed": trial_id * 10},
        "reportTime": "2026-01-02T03:04:05Z",
        "training": {
            "experimentId": 1,
            "trialId": trial_id,
            "experimentConfig": copy.deepcopy(CONFIG),
            "hparams": {"lr": trial_id / 10},
            "searcherMetric": metric,
            "validationMetrics": metrics,
        },
        **more,
    }


def job(experiment_id: int, state: str = "QUEUED", **more: Any) -> dict[str, Any]:
    """The JSON of a job in the queue."""
    return {
        "jobId": f"00000000-0000-0000-0000-00000000000{experiment_id}",
        "entityId": str(experiment_id),
        "type": "TYPE_EXPERIMENT",
        "name": "digits",
        "resourcePool": "default",
        "username": "determined",
        "submissionTime": "2026-01-02T03:04:05.678Z",
        "priority": 42,
        "weight": 1,
        "requestedSlots": 4,
        "allocatedSlots": 0,
        "summary": {"state": f"STATE_{state}", "jobsAhead": 2},
        **more,
    }


def model(id: int = 1, **more: Any) -> dict[str, Any]:
    """The JSON of a model."""
    return {
        "id": id,
        "name": "digits",
        "description": "numbers",
        "notes": "",
        "metadata": {"a": 1},
        "labels": ["x"],
        "tags": {"stage": "new"},
        "aliases": {"champion": 1},
        "creationTime": "2026-01-02T03:04:05Z",
        "lastUpdatedTime": "2026-01-02T03:04:05Z",
        "numVersions": 1,
        "userId": 2,
        "username": "determined",
        "workspaceId": 1,
        "archived": False,
        **more,
    }


def workspace(**more: Any) -> dict[str, Any]:
    """The JSON of a workspace."""
    return {
        "id": 3,
        "name": "vision",
        "archived": False,
        "immutable": False,
        "pinned": False,
        "numProjects": 1,
        "numExperiments": 2,
        "userId": 2,
        "username": "determined",
        "agentUserGroup": None,
        "checkpointStorageConfig": {"type": "s3", "bucket": "b"},
        "defaultComputePool": "default",
        "defaultAuxPool": None,
        "state": "WORKSPACE_STATE_UNSPECIFIED",
        "errorMessage": "",
        **more,
    }


def project(**more: Any) -> dict[str, Any]:
    """The JSON of a project of :func:`workspace`."""
    return {
        "id": 4,
        "name": "cats",
        "key": "CAT",
        "description": "which cat",
        "notes": [{"name": "plan", "contents": "all"}],
        "archived": False,
        "immutable": False,
        "numExperiments": 2,
        "numActiveExperiments": 0,
        "numRuns": 3,
        "lastExperimentStartedAt": None,
        "workspaceId": 3,
        "workspaceName": "vision",
        "userId": 2,
        "username": "determined",
        "state": "WORKSPACE_STATE_UNSPECIFIED",
        "errorMessage": "",
        **more,
    }


CONTENTS = {
    **dict.fromkeys(("projects", "experiments", "running", "checkpoints", "templates"), 1),
    **dict.fromkeys(("pipelines", "tasks", "runningTasks", "models"), 1),
    "checkpointBytes": "5",
}


def model_version(number: int = 1, **more: Any) -> dict[str, Any]:
    """The JSON of a version of :func:`model`."""
    return {
        "id": number,
        "version": number,
        "name": "first",
        "comment": "c",
        "notes": "",
        "metadata": {},
        "labels": [],
        "tags": {},
        "aliases": ["champion"],
        "creationTime": "2026-01-02T03:04:05Z",
        "lastUpdatedTime": "2026-01-02T03:04:05Z",
        "username": "determined",
        "model": model(),
        "checkpoint": checkpoint(f"u-{number}", number, number / 2),
        "lineage": {"experimentId": 1, "experimentName": "digits", "data": {"v": "1"}},
        **more,
    }


def command(**more: Any) -> dict[str, Any]:
    """The JSON of a command that has ended."""
    return {
        "id": "5f0e7a36-0000-4000-8000-000000000001",
        "description": "Command (x)",
        "state": "STATE_TERMINATED",
        "taskState": "STATE_COMPLETED",
        "username": "determined",
        "jobId": "5f0e7a36-0000-4000-8000-00000000000a",
        "resourcePool": "default",
        "slots": 1,
        "exitStatus": "process exited with code 0",
        "exitCode": 0,
        "exitSignal": None,
        "startTime": "2026-01-01T00:00:00Z",
        **more,
    }


def log_line(id: int, text: str, **more: Any) -> dict[str, Any]:
    """The JSON of a log entry; ``id`` is its second, too."""
    return {
        "id": id,
        "timestamp": f"2026-01-02T03:04:{id:02d}+00:00",
        "message": f"[{id}] {text}\n",
        "log": f"{text}\n",
        "level": "LOG_LEVEL_INFO",
        **more,
    }


class Refused(Exception):
    """A handler's error answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FakeService:
    """Keeps the data sent to it and counts requests.

    ``experiments`` may hold a list of documents: one per request; the last one repeats.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.params: list[httpx.QueryParams] = []
        self.passwords = {"determined": "secret", "ann": "ann's"}
        self.cluster_id = "c-1"
        # After how many entries an answer with logs breaks off, as when the service is stopped.
        self.log_breaks: list[int] = []
        self.tokens: dict[str, str] = {}
        self.experiments: dict[int, Any] = {}
        self.trials: dict[int, list[Any]] = {}
        self.checkpoints: list[Any] = []
        # Of its only checkpoint, if it hands out files.
        self.files: ServedFiles | None = None
        self.logs: dict[int, list[Any]] = {}
        self.workloads: dict[int, list[Any]] = {}
        self.metrics: list[Any] = []
        self.agents: list[Any] = []
        self.cluster_config: dict[str, Any] = {"config": {}, "refusal": ""}
        # What administrators tell all users.
        self.message: dict[str, Any] = {}
        self.password_min_chars = 0
        # Of accounting: the lines of CSV, and the entries in JSON.
        self.usage_csv = ""
        self.usage: list[Any] = []
        self.explanations: dict[int, Any] = {}
        self.explained_with: list[dict[str, str]] = []
        self.pools: list[Any] = [{"name": "default", "defaultComputePool": True}]
        self.model_def = b""
        self.warnings: list[str] = []
        self.sources: list[dict[str, Any]] = []
        self.remarks: list[str] = []
        self.own_log: list[Any] = []
        self.jobs: list[Any] = []
        self.waiting: list[Any] = []
        # The model that every name means, its versions, and the moves of its aliases.
        self.model: dict[str, Any] = model()
        self.versions: list[Any] = []
        self.moves: list[Any] = []
        self.pipeline: dict[str, Any] = {}
        # The workspace and the project that every id means.
        self.workspace: dict[str, Any] = workspace()
        self.project: dict[str, Any] = project()
        self.members: dict[str, Any] = {
            "usersAssignedDirectly": [{"id": 2, "username": "determined"}],
            "groups": [],
            "assignments": [{"role": {"name": "Editor"}, "userRoleAssignments": [{"userId": 2}]}],
        }
        # The template that every name means.
        self.template: dict[str, Any] = {}
        # The access token that every number means, and the secret of a new one.
        self.access_token: dict[str, Any] = {}
        self.new_access_token: dict[str, Any] = {}
        # The commands; each path of a task's answers the first one.
        self.commands: list[Any] = []
        self.retrainings: list[Any] = []
        self.retraining_runs: list[Any] = []
        self.refusal: Refused | None = None
        self.refusals: dict[int, str] = {}
        self.away = False
        self._numbers = itertools.count(1)
        self.routes: list[tuple[str, str, Handler]] = [
            ("GET", r"/api/v1/master", self._master),
            ("POST", r"/api/v1/auth/login", self._login),
            ("POST", r"/api/v1/auth/logout", self._logout),
            ("GET", r"/api/v1/me", self._me),
            ("GET", r"/api/v1/users", self._users),
            ("POST", r"/api/v1/users", self._create_user),
            ("GET", r"/api/v1/users/(.+)/by-username", self._user_by_name),
            ("PATCH", r"/api/v1/users/(\d+)", self._patch_user),
            ("GET", r"/api/v1/master/config", lambda r: self.cluster_config),
            (
                "GET",
                r"/api/v1/master/cluster_message",
                lambda r: {"clusterMessage": self.message or None},
            ),
            ("(?:PUT|DELETE)", r"/api/v1/master/cluster_message", lambda r: {}),
            ("GET", r"/api/v1/master/logs", lambda r: self._stream(self.own_log)),
            (
                "POST",
                r"/api/v1/agents/[^/]+(?:/slots/\d+|/machines/[^/]+)?/(?:enable|disable)",
                lambda r: {},
            ),
            ("DELETE", r"/api/v1/agents/[^/]+", lambda r: {}),
            ("GET", r"/api/v1/agents", lambda r: self._page(r, "agents", self.agents)),
            (
                "GET",
                r"/api/v1/resource-pools",
                lambda r: self._page(r, "resourcePools", self.pools),
            ),
            ("GET", r"/api/v1/job-queues-v2", self._jobs),
            ("POST", r"/api/v1/job-queues", lambda r: {"remarks": self.remarks}),
            (
                "GET",
                r"/api/v1/job-queues/(.+)/explanation",
                lambda r, _: {"job": self.jobs[0], "waiting": self.waiting},
            ),
            (
                "GET",
                r"/resources/allocation/([-\w]+)",
                lambda r, _: httpx.Response(200, text=self.usage_csv),
            ),
            (
                "GET",
                r"/api/v1/resources/allocation/(\w+)",
                lambda r, _: {"resourceEntries": self.usage},
            ),
            ("GET", r"/api/v1/checkpoints/[^/]+/(?:files|contents)", self._files),
            ("POST", r"/api/v1/experiments", self._create),
            ("POST", r"/api/v1/experiments/continue", lambda r: {}),
            ("GET", r"/api/v1/experiments", self._list),
            (
                "POST",
                r"/api/v1/experiments/(?:kill|cancel|pause|activate|archive|unarchive)",
                self._many,
            ),
            ("GET", r"/api/v1/experiments/(\d+)", self._experiment),
            ("PATCH", r"/api/v1/experiments/(\d+)", self._patch),
            ("GET", r"/api/v1/experiments/(\d+)/trials", self._trials),
            ("GET", r"/api/v1/experiments/(\d+)/explanation", self._explanation),
            ("GET", r"/api/v1/experiments/(\d+)/checkpoints", self._checkpoints),
            ("GET", r"/api/v1/experiments/(\d+)/model_def", self._model_def),
            ("PUT", r"/api/v1/experiments/(\d+)/labels/(.+)", self._add_label),
            ("DELETE", r"/api/v1/experiments/(\d+)/labels/(.+)", self._remove_label),
            ("POST", r"/api/v1/experiments/(\d+)/(\w+)", lambda r, *_: {}),
            ("GET", r"/api/v1/trials/metrics/trial_metrics", self._metrics),
            ("GET", r"/api/v1/trials/(\d+)", self._trial),
            ("POST", r"/api/v1/trials/(\d+)/kill", lambda r, _: {}),
            ("GET", r"/api/v1/trials/(\d+)/checkpoints", self._checkpoints),
            ("GET", r"/api/v1/trials/(\d+)/logs", self._logs),
            ("GET", r"/api/v1/tasks/[^/]+/logs", lambda r: self._logs(r, "0")),
            ("GET", r"/api/v1/tasks", self._tasks),
            ("GET", r"/api/v1/tasks/[^/]+", lambda r: {"task": self.commands[0]}),
            ("GET", r"/api/v1/tasks/[^/]+/config", self._task_config),
            ("POST", r"/api/v1/tasks/[^/]+/(?:kill|pause|unpause)", lambda r: {}),
            ("POST", r"/api/v1/generic-tasks", lambda r: {"taskId": self.commands[0]["id"]}),
            ("GET", r"/api/v1/commands", lambda r: self._page(r, "commands", self.commands)),
            ("POST", r"/api/v1/commands", self._command),
            ("GET", r"/api/v1/commands/[^/]+", self._command),
            ("POST", r"/api/v1/commands/[^/]+/(?:kill|set_priority)", self._command),
            ("GET", r"/api/v1/trials/(\d+)/workloads", self._workloads),
            ("GET", r"/api/v1/checkpoints", self._beginning),
            ("GET", r"/api/v1/checkpoints/([-\w]+)", self._checkpoint),
            ("PATCH", r"/api/v1/checkpoints/([-\w]+)/metadata", self._change_metadata),
            ("GET", r"/api/v1/models", lambda r: self._page(r, "models", [self.model])),
            ("POST", r"/api/v1/models", lambda r: {"model": self.model}),
            ("GET", r"/api/v1/models/([^/]+)", lambda r, _: {"model": self.model}),
            ("PATCH", r"/api/v1/models/([^/]+)", lambda r, _: {"model": self.model}),
            ("DELETE", r"/api/v1/models/([^/]+)", lambda r, _: {}),
            ("POST", r"/api/v1/models/([^/]+)/(archive|unarchive)", lambda r, *_: {}),
            ("GET", r"/api/v1/models/([^/]+)/versions", self._model_versions),
            ("POST", r"/api/v1/models/([^/]+)/versions", self._model_version),
            ("GET", r"/api/v1/models/([^/]+)/versions/\d+", self._model_version),
            ("DELETE", r"/api/v1/models/([^/]+)/versions/\d+", lambda r, _: {}),
            ("GET", r"/api/v1/models/([^/]+)/aliases/([^/]+)", self._model_version),
            ("PUT", r"/api/v1/models/([^/]+)/aliases/([^/]+)", lambda r, *_: {"fromVersion": 1}),
            ("DELETE", r"/api/v1/models/([^/]+)/aliases/([^/]+)", lambda r, *_: {"fromVersion": 1}),
            (
                "GET",
                r"/api/v1/models/([^/]+)/alias-history",
                lambda r, _: self._page(r, "moves", self.moves),
            ),
            (
                "GET",
                "/api/v1/workspaces",
                lambda r: self._page(r, "workspaces", [self.workspace]),
            ),
            (
                "GET",
                r"/api/v1/workspaces/(\d+)/projects",
                lambda r, _: self._page(r, "projects", [self.project]),
            ),
            (
                "GET",
                r"/api/v1/workspaces/(\d+)/available-resource-pools",
                lambda *_: {"resourcePools": [one["name"] for one in self.pools]},
            ),
            ("GET", r"/api/v1/roles/workspace/(\d+)", lambda *_: self.members),
            (
                "GET",
                r"/api/v1/(?:workspaces|projects)/(\d+)/contents",
                lambda *_: {"contents": CONTENTS},
            ),
            (
                "POST",
                r"/api/v1/workspaces/(\d+)/projects",
                lambda *_: {"project": self.project},
            ),
            ("POST", r"/api/v1/(?:workspaces|projects)/(\d+)/(?:un)?archive", lambda *_: {}),
            ("POST", r"/api/v1/(?:experiments|projects)/(\d+)/move", lambda *_: {}),
            ("DELETE", r"/api/v1/workspaces/(\d+)", lambda *_: self._fail(self.workspace)),
            ("DELETE", r"/api/v1/projects/(\d+)", lambda *_: self._fail(self.project)),
            ("POST", "/api/v1/workspaces", lambda *_: {"workspace": self.workspace}),
            (
                "(?:GET|PATCH)",
                r"/api/v1/workspaces/(\d+)",
                lambda *_: {"workspace": self.workspace},
            ),
            ("(?:GET|PATCH)", r"/api/v1/projects/(\d+)", lambda *_: {"project": self.project}),
            (
                "GET",
                r"/api/v1/resource-pools/([^/]+)/workspace-bindings",
                lambda *_: {"workspaceIds": [3]},
            ),
            (
                "(?:POST|PUT|DELETE)",
                r"/api/v1/resource-pools/([^/]+)/workspace-bindings",
                lambda *_: {},
            ),
            (
                "GET",
                "/api/v1/templates",
                lambda r: self._page(r, "templates", [self.template]),
            ),
            ("GET", r"/api/v1/templates/([^/]+)", lambda *_: {"template": self.template}),
            (
                "(?:POST|PUT|PATCH)",
                r"/api/v1/templates/([^/]+)",
                lambda *_: {"template": self.template, "remarks": self.remarks},
            ),
            ("DELETE", r"/api/v1/templates/([^/]+)", lambda *_: {}),
            (
                "(?:GET|PUT|DELETE)",
                r"/api/v1/config-policies/(?:global|workspaces/\d+)/(?:EXPERIMENT|NTSC)",
                lambda *_: {"configPolicies": {"invariant_config": self.template}},
            ),
            (
                "GET",
                "/api/v1/tokens",
                lambda r: self._page(r, "tokenInfo", [self.access_token]),
            ),
            ("POST", "/api/v1/tokens", lambda r: self.new_access_token),
            ("PATCH", r"/api/v1/tokens/(\d+)", lambda *_: {"tokenInfo": self.access_token}),
            (
                "GET",
                "/api/v1/retrainings",
                lambda r: self._page(r, "retrainings", self.retrainings),
            ),
            (
                "GET",
                r"/api/v1/models/([^/]+)/retraining/runs",
                lambda r, _: self._page(r, "runs", self.retraining_runs),
            ),
            (
                "POST",
                r"/api/v1/models/([^/]+)/retraining/(?:runs|cancel|approve)",
                lambda *_: {"runId": 1},
            ),
            (
                "POST",
                r"/api/v1/models/([^/]+)/retraining/live-metrics",
                lambda *_: {"version": 1},
            ),
            (
                "POST",
                r"/api/v1/models/([^/]+)/retraining/rollback",
                lambda *_: {"fromVersion": 2, "toVersion": 1},
            ),
            (
                "PUT",
                r"/api/v1/models/([^/]+)/retraining",
                lambda *_: {"retraining": self.retrainings[0], "remarks": self.remarks},
            ),
            ("PATCH", r"/api/v1/models/([^/]+)/retraining", lambda *_: {}),
            (
                "POST",
                "/api/v1/pipelines",
                lambda *_: {"pipelineId": 1, "remarks": self.remarks},
            ),
            (
                "GET",
                "/api/v1/pipelines",
                lambda r: self._page(r, "pipelines", [self.pipeline]),
            ),
            ("GET", r"/api/v1/pipelines/(\d+)", lambda *_: {"pipeline": self.pipeline}),
            ("POST", r"/api/v1/pipelines/(\d+)/(?:cancel|resume)", lambda *_: {}),
            ("DELETE", r"/api/v1/pipelines/(\d+)", lambda *_: {}),
            ("DELETE", r"/api/v1/models/([^/]+)/retraining", lambda *_: {}),
        ]
        self.transport = httpx.MockTransport(self._handle)

    def token_for(self, user: str) -> str:
        """A token that it takes."""
        token = f"token-{user}-{next(self._numbers)}"
        self.tokens[token] = user
        return token

    def called(self, method: str, path: str) -> int:
        """The number of requests."""
        return self.calls.count((method, path))

    def _handle(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("connection refused", request=request)
        path = request.url.raw_path.decode().partition("?")[0]
        self.calls.append((request.method, path))
        self.params.append(request.url.params)
        self.bodies.append(json.loads(request.content) if request.content else None)
        try:
            if path not in ("/api/v1/master", "/api/v1/auth/login", "/ready"):
                self._user(request)
            for method, pattern, handler in self.routes:
                found = re.fullmatch(pattern, path)
                if re.fullmatch(method, request.method) and found:
                    answer = handler(request, *map(unquote, found.groups()))
                    if isinstance(answer, httpx.Response):
                        return answer
                    return httpx.Response(200, json=answer)
            raise Refused(404, f"no such path: {request.method} {path}")
        except Refused as refused:
            return httpx.Response(refused.status, json={"error": {"error": str(refused)}})

    def _user(self, request: httpx.Request) -> str:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            raise Refused(401, "the token is not valid")
        return self.tokens[token]

    def _files(self, request: httpx.Request) -> httpx.Response:
        if self.files is None:
            raise Refused(404, "there is no such address here")
        return self.files.handle(request)

    def _master(self, request: httpx.Request) -> Any:
        from determined.__version__ import __version__

        found = {
            "version": __version__,
            "clusterId": self.cluster_id,
            "clusterName": "fake",
            "passwordMinChars": self.password_min_chars,
        }
        return found | ({"clusterMessage": self.message} if self.message else {})

    def _login(self, request: httpx.Request) -> Any:
        body = json.loads(request.content)
        assert body["isHashed"] is True
        expected = self.passwords.get(body["username"])
        if expected is None or body["password"] != salt_and_hash(expected):
            raise Refused(401, "wrong user name or password")
        return {"token": self.token_for(body["username"]), "user": {"username": body["username"]}}

    def _logout(self, request: httpx.Request) -> Any:
        self.tokens.pop(request.headers["Authorization"].removeprefix("Bearer "))
        return {}

    def _user_json(self, name: str) -> Any:
        return {"id": 2, "username": name, "admin": False, "active": True, "displayName": ""}

    def _me(self, request: httpx.Request) -> Any:
        return {"user": self._user_json(self._user(request))}

    def _users(self, request: httpx.Request) -> Any:
        return self._page(request, "users", [self._user_json(name) for name in self.passwords])

    def _user_by_name(self, request: httpx.Request, name: str) -> Any:
        if name not in self.passwords:
            raise Refused(404, f"user {name!r} does not exist")
        return {"user": self._user_json(name)}

    def _create_user(self, request: httpx.Request) -> Any:
        username = json.loads(request.content)["user"].get("username")
        if not username:
            raise Refused(400, "username is missing: a user needs a name")
        return {"user": self._user_json(username)}

    def _patch_user(self, request: httpx.Request, _: str) -> Any:
        changes = json.loads(request.content)
        answer: dict[str, Any] = {"user": self._user_json("ann") | changes}
        if changes.get("active") is False:
            answer["stillRunning"] = {"experiments": [3, 5], "tasks": []}
        return answer

    def _fail(self, place: dict[str, Any]) -> dict[str, Any]:
        """A deletion, which fails."""
        place["state"] = "WORKSPACE_STATE_DELETE_FAILED"
        place["errorMessage"] = place["name"]
        return {"completed": False}

    def _page(self, request: httpx.Request, key: str, items: Iterable[Any]) -> Any:
        listed = list(items)
        offset = int(request.url.params.get("offset", 0))
        limit = int(request.url.params.get("limit", 100))
        if offset < 0:
            offset = max(len(listed) + offset, 0)
        pagination = {"offset": offset, "limit": limit, "total": len(listed)}
        end = None if limit == -1 else offset + limit
        return {key: listed[offset:end], "pagination": pagination}

    def _create(self, request: httpx.Request) -> Any:
        if self.refusal:
            raise self.refusal
        made = self.experiments.setdefault(1, experiment(state="ACTIVE"))
        made = made[0] if isinstance(made, list) else made
        return {
            "experiment": made,
            "config": CONFIG,
            "warnings": self.warnings,
            "remarks": self.remarks,
            "sources": self.sources,
        }

    def _jobs(self, request: httpx.Request) -> Any:
        return self._page(request, "jobs", [{"full": one} for one in self.jobs])

    def _list(self, request: httpx.Request) -> Any:
        asked = request.url.params
        included = {int(one) for one in asked.get_list("experimentIdFilter.incl")}
        labels, states = set(asked.get_list("labels")), set(asked.get_list("states"))
        if "STATE_ACTIVE" in states:
            states |= {"STATE_QUEUED", "STATE_STARTING", "STATE_RUNNING"}
        found = [
            one
            for one in self.experiments.values()
            if (not included or one["id"] in included)
            and labels <= set(one["labels"])
            and (not states or one["state"] in states)
        ]
        return self._page(request, "experiments", found)

    def _many(self, request: httpx.Request) -> Any:
        """An action on many experiments; :attr:`refusals` names the refused ones."""
        ids = json.loads(request.content)["experimentIds"]
        unknown = "not found: experiment {} does not exist"
        return {
            "results": [
                {
                    "id": one,
                    "error": self.refusals.get(one, "")
                    if one in self.experiments
                    else unknown.format(one),
                }
                for one in ids
            ]
        }

    def _now(self, id: str) -> Any:
        found = self.experiments.get(int(id))
        if found is None:
            raise Refused(404, f"experiment {id} does not exist")
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found

    def _experiment(self, request: httpx.Request, id: str) -> Any:
        found = self._now(id)
        answer = {"experiment": found, "config": found["config"]}
        if request.url.params.get("remarks") == "true":
            answer["remarks"] = self.remarks
        return answer

    def _patch(self, request: httpx.Request, id: str) -> Any:
        found = self._now(id)
        found.update({k: v for k, v in json.loads(request.content).items() if k != "id"})
        return {"experiment": found}

    def _add_label(self, request: httpx.Request, id: str, label: str) -> Any:
        found = self._now(id)
        found["labels"].append(label)
        return {"labels": found["labels"]}

    def _remove_label(self, request: httpx.Request, id: str, label: str) -> Any:
        found = self._now(id)
        found["labels"].remove(label)
        return {"labels": found["labels"]}

    def _trials(self, request: httpx.Request, id: str) -> Any:
        found = self.trials.get(int(id), [])
        if found and isinstance(found[0], list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if states := request.url.params.get_list("states"):
            found = [one for one in found if one["state"] in states]
        return self._page(request, "trials", found)

    def _explanation(self, request: httpx.Request, id: str) -> Any:
        self.explained_with.append(dict(request.url.params))
        return self.explanations.get(int(id), {"legs": [], "waiting": []})

    def _trial(self, request: httpx.Request, id: str) -> Any:
        for found in itertools.chain(*self.trials.values()):
            if found["id"] == int(id):
                return {"trial": found}
        raise Refused(404, f"trial {id} does not exist")

    def _checkpoints(self, request: httpx.Request, id: str) -> Any:
        params = request.url.params
        found = self.checkpoints
        if "/trials/" in request.url.path:
            found = [c for c in found if c["training"]["trialId"] == int(id)]
        wanted = params.get_list("states")
        found = [c for c in found if not wanted or c["state"] in wanted]
        key = self._sort_key(params)
        known = [c for c in found if key(c) is not None]
        unknown = [c for c in found if key(c) is None]
        known.sort(key=key, reverse=params.get("orderBy") == "ORDER_BY_DESC")
        return self._page(request, "checkpoints", known + unknown)

    @staticmethod
    def _sort_key(params: httpx.QueryParams) -> Callable[[Any], Any]:
        if params.get("sortByAttr") == "SORT_BY_BATCH_NUMBER":
            return lambda c: c["metadata"]["steps_completed"]
        name = params.get("sortByMetric") or "accuracy"

        def value(item: Any) -> Any:
            found = item["training"]["validationMetrics"].get("avgMetrics", {}).get(name)
            return found if isinstance(found, float) else None

        return value

    def _beginning(self, request: httpx.Request) -> Any:
        params = request.url.params
        found = sorted(one["uuid"] for one in self.checkpoints)
        found = [one for one in found if one.startswith(params["uuidBeginning"])]
        return {"uuids": found[: int(params["limit"])]}

    def _checkpoint(self, request: httpx.Request, uuid: str) -> Any:
        for found in self.checkpoints:
            if found["uuid"] == uuid:
                return {"checkpoint": found}
        raise Refused(404, f"checkpoint {uuid} does not exist")

    def _change_metadata(self, request: httpx.Request, uuid: str) -> Any:
        found = self._checkpoint(request, uuid)["checkpoint"]
        given = json.loads(request.content)
        found["metadata"] |= given.get("metadata", {})
        for key in given.get("remove", []):
            found["metadata"].pop(key, None)
        return {"checkpoint": found}

    def _model_versions(self, request: httpx.Request, _: str) -> Any:
        return self._page(request, "modelVersions", self.versions)

    def _model_version(self, request: httpx.Request, *_: str) -> Any:
        number = request.url.path.rpartition("/")[2]
        found = [one for one in self.versions if str(one["version"]) == number]
        return {"modelVersion": (found or self.versions)[0]}

    def _model_def(self, request: httpx.Request, id: str) -> Any:
        import base64

        return {"b64Tgz": base64.b64encode(self.model_def).decode()}

    def _workloads(self, request: httpx.Request, id: str) -> Any:
        return self._page(request, "workloads", self.workloads.get(int(id), []))

    def _metrics(self, request: httpx.Request) -> Any:
        params = request.url.params
        ids = {int(one) for one in params.get_list("trialIds")}
        found = [
            report
            for report in self.metrics
            if report["trialId"] in ids and report["group"] == params["group"]
        ]
        return self._stream([{"metrics": found[i : i + 2]} for i in range(0, len(found), 2)])

    def _command(self, request: httpx.Request) -> Any:
        config = self.commands[0].get("config", {})
        return {"command": self.commands[0], "config": config, "remarks": self.remarks}

    def _task_config(self, request: httpx.Request) -> Any:
        return {"config": json.dumps(self.commands[0].get("config", {}))}

    def _tasks(self, request: httpx.Request) -> Any:
        found = [
            {**one, "taskId": one["id"], "allocationId": one["id"], "proxyPorts": []}
            for one in self.commands
        ]
        return {"allocationIdToSummary": {one["id"]: one for one in found}, "tasks": found}

    def _logs(self, request: httpx.Request, id: str) -> Any:
        params = request.url.params
        found = list(self.logs.get(int(id), []))
        after = params.get("timestampAfter")
        if after:
            found = [entry for entry in found if entry["timestamp"] > after]
        levels = params.get_list("levels")
        found = [entry for entry in found if not levels or entry["level"] in levels]
        if params.get("orderBy") == "ORDER_BY_DESC":
            found.reverse()
        if self.log_breaks:
            answer = self._stream(found[: self.log_breaks.pop(0)])
            error = {"grpcCode": 14, "httpCode": 503, "message": "the service is stopping"}
            return httpx.Response(200, text=answer.text + json.dumps({"error": error}) + "\n")
        return self._stream(found[: int(params["limit"])] if "limit" in params else found)

    @staticmethod
    def _stream(results: Iterable[Any]) -> httpx.Response:
        lines = "".join(json.dumps({"result": result}) + "\n" for result in results)
        return httpx.Response(200, text=lines)
