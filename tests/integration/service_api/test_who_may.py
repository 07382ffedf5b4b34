"""No other user can change my things: every changing route, called by every subject.

:data:`REQUESTS` holds a request for each such route; a new route without one fails
:func:`test_there_is_a_request_for_every_route_that_changes_something`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.dialects.postgresql import insert

from determined_registry import models as registry
from determined_registry.database.tables import (
    agents,
    allocations,
    checkpoints,
    cluster,
    config_policies,
    deletions,
    experiments,
    group_members,
    groups,
    live_metrics,
    log_policy_matches,
    metrics,
    model_alias_history,
    model_aliases,
    model_versions,
    models,
    pipeline_experiments,
    pipeline_steps,
    pipelines,
    pool_bindings,
    pools,
    projects,
    retraining_runs,
    retrainings,
    role_assignments,
    search_events,
    slots,
    task_logs,
    tasks,
    templates,
    trial_sources,
    trials,
    user_sessions,
    users,
    workspace_pins,
    workspaces,
)
from determined_service.access.access_tokens import FOR_EVER
from determined_service.access.dependencies import MayNamed
from determined_service.access.rules import Action, Grant
from determined_service.access.targets import Kind, Owner, Owners
from determined_service.base.db import Database
from determined_service.reference import Address, declared_rules
from tests.integration.conftest import client_of
from tests.integration.service_api.test_checkpoints import store
from tests.integration.service_api.world import SEARCHER, Leg, World, report

TOKENS_FROM = 1_000
"""Logins have the first numbers of the table."""

TABLES = [allocations, checkpoints, deletions, experiments, metrics, search_events, task_logs]
TABLES += [trials, users, agents, slots, models, model_versions, model_aliases]
TABLES += [model_alias_history, trial_sources, retrainings, retraining_runs, live_metrics]
TABLES += [tasks]
TABLES += [groups, group_members, role_assignments]
TABLES += [pipelines, pipeline_steps, pipeline_experiments, templates]
TABLES += [cluster, workspaces, projects, workspace_pins, pool_bindings, config_policies]
PASSED_OVER = (401, 403, 404, 500)


@dataclass(frozen=True)
class Mine:
    """The first user's things: a running leg, a checkpoint, an account, a model, whose version 1 (another
    checkpoint) is the champion, a task of each launched kind, by the plural of its noun, and a group, which
    has the role Editor in the first workspace; and the workspace and the project in which the experiment is.
    """

    leg: Leg
    checkpoint: str
    user_id: int
    model: str = "none"
    tasks: dict[str, str] = field(default_factory=dict)
    group: int = 0
    workspace_id: int = 1
    project_id: int = 1

    def task_of(self, path: str) -> str:
        """The task that is meant by ``task_id`` in the path: for reports, that of the leg."""
        if path.endswith(("/report_idle", "/door")):
            return self.leg.task_id
        if "/notebook-files/" in path:
            return self.tasks["notebooks"]
        kind = next((kind for kind in self.tasks if f"/{kind}/" in path), "")
        return self.tasks.get(kind, "none")

    @property
    def path(self) -> dict[str, Any]:
        return {
            "experiment_id": self.leg.experiment_id,
            "trial_id": self.leg.trial_id,
            "allocation_id": self.leg.allocation_id,
            "resources_id": f"{self.leg.allocation_id}.agent-1",
            "uuid": self.checkpoint,
            "model_name": self.model,
            "pipeline_id": self.leg.experiment_id,  # model_of() makes it, and the template
            "template_name": self.model,
            "token_id": TOKENS_FROM + self.leg.experiment_id,
            "version": 1,
            "alias": "champion",
            "user_id": self.user_id,
            "group_id": self.group,
            "workspace_id": self.workspace_id,
            "project_id": self.project_id,
            "pool_name": "idle",
            "workload_type": "NTSC",
            "label": "mine",
            "agent_id": "idle",
            "slot_id": 0,
            "machine": "m",
        }


@dataclass(frozen=True)
class Asked:
    """``body`` makes the request's JSON."""

    body: Callable[[Mine], Any] = lambda mine: {}
    params: dict[str, Any] = field(default_factory=dict)


def just(body: Any) -> Asked:
    return Asked(lambda mine: body)


def chosen(mine: Mine) -> Any:
    return {"experimentIds": [mine.leg.experiment_id]}


def chosen_run(mine: Mine) -> Any:
    return {"runIds": [mine.leg.trial_id]}


def upstream_report(mine: Mine) -> Any:
    return {
        "trialId": mine.leg.trial_id,
        "trialRunId": 1,
        "stepsCompleted": 1,
        "metrics": {"avgMetrics": {"loss": 0.5}},
    }


def trial_of_mine(mine: Mine) -> Any:
    return {"experimentId": mine.leg.experiment_id, "unmanaged": True}


def named_checkpoint(mine: Mine) -> Any:
    return {"checkpointUuids": [mine.checkpoint]}


def of_group(role: str) -> Callable[[Mine], Any]:
    """The assignment of the role to the group, in its workspace."""

    def body(mine: Mine) -> Any:
        scope = {"role": {"name": role}, "scopeWorkspaceId": mine.workspace_id}
        return {"groupRoleAssignments": [{"groupId": mine.group, "roleAssignment": scope}]}

    return body


API = "/api/v1"
EXPERIMENT = f"{API}/experiments/{{experiment_id}}"
TRIAL = f"{API}/trials/{{trial_id}}"
ALLOCATION = f"{API}/allocations/{{allocation_id}}"
MEETING = f"{ALLOCATION}/resources/{{resources_id}}/rendezvous"
MODEL = f"{API}/models/{{model_name}}"
VERSION = f"{MODEL}/versions/{{version}}"
ALIAS = f"{MODEL}/aliases/{{alias}}"
RETRAINING = f"{MODEL}/retraining"
PIPELINE = f"{API}/pipelines/{{pipeline_id}}"
WORKSPACE = f"{API}/workspaces/{{workspace_id}}"
PROJECT = f"{API}/projects/{{project_id}}"
BINDINGS = f"{API}/resource-pools/{{pool_name}}/workspace-bindings"
POLICIES = f"{API}/config-policies"
OF_WORKSPACE = f"{POLICIES}/workspaces/{{workspace_id}}/{{workload_type}}"
TEMPLATE = f"{API}/templates/{{template_name}}"
RUN_VERBS = ("pause", "resume", "kill", "archive", "unarchive", "delete")
VERBS = ("activate", "pause", "cancel", "kill", "archive", "unarchive")

POLICY = {"configPolicies": "constraints: {priority_limit: 1}"}
LOSS = {"key": "loss", "value": 0.5, "timestamp": "1700000000000", "step": "1"}

KINDS = ("commands", "notebooks", "shells", "tensorboards")
TASK = f"{API}/tasks/{{task_id}}"

OF_ONE_KIND = {
    ("GET", f"{API}/tensorboards/{{task_id}}/sources"),
    ("GET", f"{API}/notebooks/{{task_id}}/files"),
    ("PUT", f"{API}/notebooks/{{task_id}}/files"),
}
"""For the process of such a task, and the leg here is a trial's (tests/integration/test_notebook.py)."""

REQUESTS: dict[Address, Asked] = {
    **{("POST", f"{TASK}/{verb}"): Asked() for verb in ("kill", "pause", "unpause")},
    ("POST", f"{TASK}/doors"): Asked(),
    ("POST", f"{TASK}/stacks"): Asked(),
    ("GET", f"{TASK}/context_directory"): Asked(),
    ("GET", f"{TASK}/returned-files"): Asked(),
    ("GET", f"{TASK}/returned-files/archive"): Asked(),
    ("DELETE", f"{TASK}/returned-files"): Asked(),
    **{("POST", f"{API}/{kind}/{{task_id}}/kill"): Asked() for kind in KINDS},
    **{("POST", f"{API}/{kind}/{{task_id}}/set_priority"): just({"priority": 3}) for kind in KINDS},
    **{
        ("PUT", f"{API}/{kind}/{{task_id}}/report_idle"): just({"idle": True}) for kind in KINDS[1:]
    },
    ("PUT", f"{API}/shells/{{task_id}}/door"): just({"no_ssh": "no sshd"}),
    **{address: Asked() for address in OF_ONE_KIND},
    ("DELETE", f"{API}/notebook-files/{{task_id}}"): Asked(),
    **{("POST", f"{EXPERIMENT}/{verb}"): Asked() for verb in VERBS},
    **{("POST", f"{API}/experiments/{verb}"): Asked(chosen) for verb in VERBS},
    **{
        ("POST", f"{API}/projects/{{project_id}}/experiments/{verb}"): Asked(chosen)
        for verb in VERBS
    },
    ("POST", f"{API}/experiments/continue"): Asked(lambda mine: {"id": mine.leg.experiment_id}),
    ("PATCH", EXPERIMENT): just(
        {"name": "other", "checkpointStorage": {"saveTrialBest": 2}, "resources": {"priority": 3}}
    ),
    ("POST", f"{API}/job-queues"): Asked(
        lambda mine: {"updates": [{"jobId": str(mine.leg.experiment_id), "priority": 3}]}
    ),
    ("DELETE", EXPERIMENT): Asked(),
    ("DELETE", f"{EXPERIMENT}/tensorboard-files"): Asked(params={"timeout_seconds": 0}),
    ("PUT", f"{EXPERIMENT}/labels/{{label}}"): Asked(),
    ("DELETE", f"{EXPERIMENT}/labels/{{label}}"): Asked(),
    ("POST", f"{EXPERIMENT}/searcher_operations"): just({"triggeredByEvent": {"id": 1}}),
    ("POST", f"{TRIAL}/kill"): Asked(),
    ("POST", f"{API}/trials"): Asked(trial_of_mine),
    ("PUT", f"{API}/trials"): Asked(
        lambda mine: {"createTrialRequest": trial_of_mine(mine), "externalTrialId": "a"}
    ),
    ("POST", f"{TRIAL}/start"): just({"resume": True}),
    ("PATCH", TRIAL): just({"state": "STATE_COMPLETED"}),
    ("GET", f"{TRIAL}/searcher/operation"): Asked(params={"timeout_s": 0}),
    ("POST", f"{TRIAL}/searcher/completed_operation"): just(
        {"op": {"length": 1}, "searcherMetric": 0.5}
    ),
    ("POST", f"{TRIAL}/progress"): just({"progress": 0.5}),
    ("POST", f"{TRIAL}/early_exit"): just({"reason": "EXITED_REASON_INVALID_HP"}),
    ("POST", f"{TRIAL}/runner/metadata"): just({"state": "training"}),
    ("POST", f"{TRIAL}/metrics/batch"): just({"run_id": 1, "reports": [report(1, loss=0.5)]}),
    ("POST", f"{TRIAL}/metrics"): Asked(
        lambda mine: {"group": "training", "metrics": upstream_report(mine)}
    ),
    ("POST", f"{TRIAL}/training_metrics"): Asked(upstream_report),
    ("POST", f"{TRIAL}/validation_metrics"): Asked(upstream_report),
    ("POST", f"{API}/runs/start"): Asked(lambda mine: {"runId": mine.leg.trial_id}),
    ("POST", f"{API}/runs/{{trial_id}}/metadata"): just({"metadata": {"note": "x"}}),
    ("GET", f"{ALLOCATION}/signals/preemption"): Asked(params={"timeout_s": 0}),
    ("POST", f"{ALLOCATION}/signals/ack_preemption"): Asked(),
    ("POST", MEETING): just({"address": "10.0.0.1"}),
    ("GET", MEETING): Asked(),
    ("POST", f"{ALLOCATION}/all_gather"): just({"requestUuid": "a", "numPeers": 1, "data": 1}),
    ("POST", f"{API}/checkpoints"): Asked(
        lambda mine: {"uuid": str(uuid.uuid4()), "allocationId": mine.leg.allocation_id}
    ),
    ("PATCH", f"{API}/checkpoints"): Asked(
        lambda mine: {"checkpoints": [{"uuid": mine.checkpoint, "resources": {"resources": {}}}]}
    ),
    ("DELETE", f"{API}/checkpoints"): Asked(named_checkpoint),
    ("POST", f"{API}/checkpoints/rm"): Asked(
        lambda mine: named_checkpoint(mine) | {"checkpointGlobs": ["*.pt"]}
    ),
    ("POST", f"{API}/checkpoints/{{uuid}}/metadata"): just({"checkpoint": {"metadata": {}}}),
    ("PATCH", f"{API}/checkpoints/{{uuid}}/metadata"): just({"metadata": {"note": "other"}}),
    ("PATCH", f"{API}/mlflow/models/{{uuid}}"): just({"tags": {"team": "other"}}),
    ("PATCH", WORKSPACE): just({"defaultComputePool": "default"}),
    ("DELETE", WORKSPACE): Asked(),
    **{("POST", f"{WORKSPACE}/{verb}"): Asked() for verb in ("archive", "unarchive")},
    ("PATCH", PROJECT): just({"description": "other"}),
    ("DELETE", PROJECT): Asked(),
    **{("POST", f"{PROJECT}/{verb}"): Asked() for verb in ("archive", "unarchive")},
    ("POST", f"{PROJECT}/move"): Asked(lambda mine: {"destinationWorkspaceId": mine.workspace_id}),
    ("POST", f"{PROJECT}/notes"): just({"name": "a", "contents": "b"}),
    ("PUT", f"{PROJECT}/notes"): just({"notes": [{"name": "a", "contents": "b"}]}),
    ("POST", f"{EXPERIMENT}/move"): just({"destinationProjectId": 1}),
    ("POST", f"{PROJECT}/experiments/move"): Asked(
        lambda mine: chosen(mine) | {"destinationProjectId": 1}
    ),
    **{("POST", f"{API}/runs/{verb}"): Asked(chosen_run) for verb in RUN_VERBS},
    ("POST", f"{API}/runs/move"): Asked(
        lambda mine: chosen_run(mine) | {"destinationProjectId": 1}
    ),
    **{(verb, BINDINGS): just({"workspaceIds": [1]}) for verb in ("POST", "PUT", "DELETE")},
    ("PUT", OF_WORKSPACE): just(POLICY),
    ("DELETE", OF_WORKSPACE): Asked(),
    ("PUT", f"{POLICIES}/global/{{workload_type}}"): just(POLICY),
    ("DELETE", f"{POLICIES}/global/{{workload_type}}"): Asked(),
    ("PUT", f"{API}/master/cluster_message"): just({"message": "x"}),
    ("DELETE", f"{API}/master/cluster_message"): Asked(),
    ("PUT", TEMPLATE): just({"config": {"max_restarts": 1}}),
    ("PATCH", TEMPLATE): just({"max_restarts": 2}),
    ("DELETE", TEMPLATE): Asked(),
    ("PATCH", f"{API}/tokens/{{token_id}}"): just({"setRevoked": True}),
    ("PATCH", MODEL): just({"description": "other"}),
    ("DELETE", MODEL): Asked(),
    **{("POST", f"{MODEL}/{verb}"): Asked() for verb in ("archive", "unarchive")},
    ("POST", f"{MODEL}/move"): just({"destinationWorkspaceId": 1}),
    ("PATCH", f"{MODEL}/metadata"): just({"metadata": {"note": "other"}}),
    ("PATCH", f"{MODEL}/tags"): just({"tags": {"stage": "other"}}),
    ("POST", f"{MODEL}/versions"): Asked(lambda mine: {"checkpointUuid": mine.checkpoint}),
    ("PATCH", VERSION): just({"comment": "other"}),
    ("DELETE", VERSION): Asked(),
    ("PATCH", f"{VERSION}/tags"): just({"tags": {"stage": "other"}}),
    ("PUT", ALIAS): just({"version": 1}),
    ("DELETE", ALIAS): Asked(),
    ("PUT", RETRAINING): just(
        {"config": "entrypoint: x", "plan": {"evaluate": "a:b", "rule": {"metric": "accuracy"}}}
    ),
    ("DELETE", RETRAINING): Asked(),
    ("PATCH", RETRAINING): just({"paused": True}),
    ("POST", f"{RETRAINING}/runs"): just({"force": True}),
    ("POST", f"{RETRAINING}/cancel"): Asked(),
    ("POST", f"{RETRAINING}/approve"): just({"approve": True}),
    ("POST", f"{RETRAINING}/rollback"): just({"version": 1}),
    **{
        ("POST", f"{PIPELINE}/{verb}"): Asked() for verb in ("again", "approve", "cancel", "resume")
    },
    **{(method, f"{PIPELINE}/schedule"): Asked() for method in ("PUT", "DELETE")},
    ("DELETE", PIPELINE): Asked(),
    ("POST", f"{RETRAINING}/live-metrics"): just({"metric": "accuracy", "values": [0.5]}),
    ("POST", f"{API}/trial-source-info"): Asked(
        lambda mine: {
            "trialSourceInfo": {
                "trialId": mine.leg.trial_id,
                "checkpointUuid": mine.checkpoint,
                "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
            }
        }
    ),
    ("POST", f"{API}/task/logs"): Asked(
        lambda mine: {"logs": [{"taskId": mine.leg.task_id, "log": "x\n"}]}
    ),
    ("POST", "/task-logs"): Asked(lambda mine: [{"task_id": mine.leg.task_id, "log": "x\n"}]),
    ("PATCH", f"{API}/users/{{user_id}}"): just({"displayName": "Other"}),
    ("POST", f"{API}/users/{{user_id}}/password"): just("hashed"),
    **{
        ("POST", f"{API}/agents/{{agent_id}}{slot}/{verb}"): Asked()
        for slot in ("", "/machines/{machine}", "/slots/{slot_id}")
        for verb in ("enable", "disable")
    },
    ("DELETE", f"{API}/agents/{{agent_id}}"): Asked(),
    ("PATCH", f"{API}/mlflow/experiments/{{experiment_id}}"): just({"tags": {"team": "other"}}),
    ("POST", f"{API}/mlflow/experiments/{{experiment_id}}/runs"): just({"name": "other"}),
    ("PATCH", f"{API}/mlflow/runs/{{trial_id}}"): just({"tags": {"team": "other"}}),
    ("PATCH", f"{API}/mlflow/runs/{{trial_id}}/state"): just({"state": "STATE_RUNNING"}),
    ("POST", f"{API}/mlflow/runs/{{trial_id}}/batch"): just({"metrics": [LOSS]}),
    ("POST", "/mlflow/api/2.0/mlflow/runs/log-batch"): Asked(
        lambda mine: {"run_id": str(mine.leg.trial_id), "metrics": [LOSS]}
    ),
    ("POST", "/mlflow/api/2.0/mlflow/runs/log-metric"): Asked(
        lambda mine: {"run_id": str(mine.leg.trial_id), **LOSS}
    ),
    ("POST", f"{API}/groups"): Asked(lambda mine: {"name": f"g{uuid.uuid4().hex}"}),
    ("PUT", f"{API}/groups/{{group_id}}"): Asked(lambda mine: {"addUsers": [mine.user_id]}),
    ("DELETE", f"{API}/groups/{{group_id}}"): Asked(),
    ("PATCH", f"{API}/users/assignments"): Asked(
        lambda mine: {"userIds": [mine.user_id], "addGroups": [mine.group]}
    ),
    ("POST", f"{API}/roles/add-assignments"): Asked(of_group("Viewer")),
    ("POST", f"{API}/roles/remove-assignments"): Asked(of_group("Editor")),
    ("PATCH", f"{API}/users"): Asked(lambda mine: {"activate": True, "userIds": [mine.user_id]}),
    ("POST", f"{API}/users"): Asked(lambda mine: {"user": {"username": f"u{uuid.uuid4().hex}"}}),
}
RULES = {
    address: rules[0]
    for address, rules in declared_rules().items()
    if rules and rules[0].action not in (Action.READ, Action.SERVE)
}
# Every user may make an experiment, and log out.
FOR_EVERYBODY = {
    address for address, rule in RULES.items() if rule.grant in (Grant.LOGGED_IN, Grant.USER)
}


def test_there_is_a_request_for_every_route_that_changes_something() -> None:
    assert REQUESTS.keys() == RULES.keys() - FOR_EVERYBODY
    assert {
        ("POST", f"{API}/experiments"),
        ("POST", f"{API}/models"),
        ("POST", f"{API}/pipelines"),
        ("POST", TEMPLATE),
        ("POST", f"{API}/workspaces"),
        ("POST", f"{WORKSPACE}/projects"),
        ("POST", f"{WORKSPACE}/pin"),
        ("POST", f"{WORKSPACE}/unpin"),
        ("POST", f"{API}/commands"),
        ("POST", f"{API}/notebooks"),
        ("POST", f"{API}/shells"),
        ("POST", f"{API}/tensorboards"),
        ("POST", f"{API}/generic-tasks"),
        ("POST", f"{API}/mlflow/experiments"),
        ("PUT", f"{API}/experiments/by-external-id/{{external_id}}"),
        ("POST", f"{API}/auth/logout"),
        ("POST", f"{API}/pages/tickets"),
        ("POST", f"{API}/tokens"),
        ("POST", f"{API}/users/activity"),
        ("POST", f"{API}/users/setting"),
        ("POST", f"{API}/users/setting/reset"),
        ("PUT", f"{API}/users/defaults"),
    } == FOR_EVERYBODY


@dataclass(frozen=True)
class People:
    owner: httpx.AsyncClient
    stranger: httpx.AsyncClient
    admin: httpx.AsyncClient


@pytest.fixture
async def people(service_app: FastAPI, agent: httpx.AsyncClient) -> AsyncIterator[People]:
    made = await agent.post("/api/v1/users", json={"user": {"username": "mallory"}})
    assert made.status_code == 200, made.text
    clients = []
    for name in ("determined", "mallory", "admin"):
        client = client_of(service_app, None)
        clients.append(client)
        login = {"username": name, "password": "", "isHashed": False}
        token = (await client.post("/api/v1/auth/login", json=login)).json()["token"]
        client.headers["Authorization"] = f"Bearer {token}"
    yield People(*clients)
    for client in clients:
        await client.aclose()


async def mine_in(world: World) -> Mine:
    async with world.db.tx() as conn:
        owner = await conn.execute(sa.select(users.c.id).where(users.c.username == "determined"))
        owner_id = owner.scalar_one()
        own = {"name": f"mine {uuid.uuid4()}", "owner_id": owner_id}
        made = sa.insert(workspaces).values(own).returning(workspaces.c.id)
        workspace_id = await conn.scalar(made)
        own |= {"workspace_id": workspace_id}
        project_id = await conn.scalar(sa.insert(projects).values(own).returning(projects.c.id))
        await conn.execute(insert(pools).values(name="idle").on_conflict_do_nothing())
    leg = await world.leg(labels=["mine"], project_id=project_id)
    async with world.db.tx() as conn:
        idle = {"id": "idle", "resource_pool": "default", "session": uuid.uuid4()}
        await conn.execute(insert(agents).values(idle).on_conflict_do_nothing())
        slot = {"agent_id": "idle", "slot_id": 0, "machine": "m"}
        await conn.execute(insert(slots).values(slot).on_conflict_do_nothing())
    model = await model_of(world, leg, owner_id)
    own_tasks, group = await tasks_of(world, owner_id), await group_of(world, workspace_id or 0)
    checkpoint = await store(leg, 1)
    return Mine(
        leg, checkpoint, owner_id, model, own_tasks, group, workspace_id or 0, project_id or 0
    )


async def group_of(world: World, workspace_id: int) -> int:
    """A group without members, which has the role Editor in that workspace."""
    async with world.db.tx() as conn:
        made = sa.insert(groups).values(name=uuid.uuid4().hex).returning(groups.c.id)
        group = int((await conn.execute(made)).scalar_one())
        role = {"role": "Editor", "group_id": group, "workspace_id": workspace_id}
        await conn.execute(sa.insert(role_assignments).values(role))
    return group


async def tasks_of(world: World, owner_id: int, submitted_by: str | None = None) -> dict[str, str]:
    """A task of each launched kind that has not ended."""
    names = {"tasks": "GENERIC"} | {kind: kind[:-1].upper() for kind in KINDS}
    made = {kind: str(uuid.uuid4()) for kind in names}
    resources = {"resource_pool": "default", "slots": 0, "priority": None}
    rows = [
        {
            "id": made[kind],
            "kind": name,
            "owner_id": owner_id,
            "name": "mine",
            "config": {"resources": resources},
            "state": "ACTIVE",
            "job_id": uuid.uuid4(),
            "submitted_by": submitted_by,
            # The settings that a shell stores.
            "data": {"private_key": "private", "public_key": "public", "key_type": "ED25519"},
        }
        for kind, name in names.items()
    ]
    async with world.db.tx() as conn:
        await conn.execute(sa.insert(tasks), rows)
    return made


async def model_of(
    world: World, leg: Leg, owner_id: int, submitted_by: str | None = None, **more: Any
) -> str:
    """A model of that user, with an alias of its only version, whose checkpoint the leg has stored; a
    template with the model's name; a pipeline with the experiment's number, whose step has the experiment's
    configuration; and an access token."""
    checkpoint = uuid.UUID(await store(leg, 2, **more))

    def make(conn: sa.Connection) -> str:
        name = f"model of {leg.trial_id} {checkpoint}"
        registry.create_model(conn, name, owner_id, submitted_by=submitted_by)
        registry.register_version(conn, name, checkpoint, owner_id)
        registry.set_alias(conn, name, "champion", 1, owner_id)
        model = registry.find_model(conn, name)
        plan = {"evaluate": "a:b", "rule": {"metric": "accuracy"}}
        retraining = {"model_id": model.id, "owner_id": owner_id, "plan": plan, "config": "{}"}
        conn.execute(insert(retrainings).values(retraining))
        number = leg.experiment_id
        given = sa.select(experiments.c.config).where(experiments.c.id == number)
        steps = [{"name": "a", "experiment": conn.execute(given).scalar_one()}]
        pipeline = {"id": number, "name": "p", "owner_id": owner_id, "state": "RUNNING"}
        written = {"plan": json.dumps({"name": "p", "steps": steps}), "submitted_by": submitted_by}
        conn.execute(insert(pipelines).values({**pipeline, **written}))
        kept = {"name": name, "config": {}, "owner_id": owner_id, "submitted_by": submitted_by}
        conn.execute(insert(templates).values(kept))
        token: dict[str, Any] = {"user_id": owner_id, "token_hash": name, "expires_at": FOR_EVER}
        token |= {"id": TOKENS_FROM + number, "is_access_token": True}
        conn.execute(insert(user_sessions).values(token))
        of = {"pipeline_id": number, "step": 0}
        conn.execute(insert(pipeline_steps).values(of | {"state": "RUNNING"}))
        running = {"item": 0, "attempt": 1, "state": "RUNNING", "experiment_id": number}
        conn.execute(insert(pipeline_experiments).values(of | running))
        return name

    async with world.db.tx() as conn:
        return await conn.run_sync(make)


async def ask(
    client: httpx.AsyncClient, address: Address, mine: Mine, **instead: Any
) -> httpx.Response:
    method, path = address
    asked = REQUESTS[address]
    return await client.request(
        method,
        path.format(**mine.path | {"task_id": mine.task_of(path)} | instead),
        json=asked.body(mine),
        params=asked.params,
    )


def refusal(answer: httpx.Response) -> str | None:
    """The sentence with which the request was refused; of a bulk action, the experiment's."""
    if answer.status_code == 403:
        return str(answer.json()["error"]["error"])
    results = answer.json().get("results") if answer.status_code == 200 else None
    return (results[0]["error"] or None) if results else None


# In one statement, because the test runs it several times for each route.
_EVERYTHING = sa.text(
    " UNION ALL ".join(
        f"SELECT '{table.name}' AS name, md5(string_agg(r::text, ' ' ORDER BY r::text)) AS rows"
        f" FROM {table.name} r"
        for table in TABLES
    )
)


async def everything(world: World) -> dict[str, Any]:
    """A digest of the rows of each table."""
    return {row.name: row.rows for row in await world.rows(_EVERYTHING)}


async def test_a_stranger_is_refused_and_changes_nothing(world: World, people: People) -> None:
    mine = await mine_in(world)
    before = await everything(world)
    for address, rule in RULES.items():
        if address in FOR_EVERYBODY:
            continue
        answer = await ask(people.stranger, address, mine)
        said = refusal(answer)
        assert said is not None, f"{address}: {answer.status_code} {answer.text}"
        owner = "user" if rule.kind == Kind.USER else "its owner"
        who = "an administrator"
        if rule.grant != Grant.ADMINISTRATOR:
            who = f"{owner} determined or {who}"
        assert said.startswith(f"only {who} may "), f"{address}: {said}"
        assert await everything(world) == before, address


async def test_the_owner_and_an_administrator_pass(world: World, people: People) -> None:
    # The last one is the password, because an administrator who sets it ends the owner's session.
    for address, rule in sorted(RULES.items(), key=lambda item: item[0][1].endswith("/password")):
        if address in FOR_EVERYBODY:
            continue
        for name, client in (("owner", people.owner), ("admin", people.admin)):
            answer = await ask(client, address, await mine_in(world))
            said = refusal(answer)
            if name == "owner" and rule.grant == Grant.ADMINISTRATOR:
                assert answer.status_code == 403, address
                continue
            assert answer.status_code not in PASSED_OVER, f"{address} {name}: {answer.text}"
            assert said is None or "administrator" not in said, f"{address} {name}: {said}"


async def test_a_training_process_reports_for_itself_alone(world: World, people: People) -> None:
    """Not even for another trial of the same owner."""
    other = await world.leg()
    for address, rule in RULES.items():
        if rule.action != Action.REPORT:
            continue
        mine = await mine_in(world)
        answer = await ask(other.client, address, mine)
        assert answer.status_code == 403, f"{address}: {answer.text}"
        assert other.allocation_id in answer.text
        if address in OF_ONE_KIND:
            continue
        answer = await ask(mine.leg.client, address, mine)
        assert answer.status_code not in PASSED_OVER, f"{address}: {answer.text}"


async def test_a_training_process_lacks_its_owners_other_rights(
    world: World, people: People
) -> None:
    """Every route, with the token of a trial: for its own experiment, for another one of its owner's, and
    for one that its own task submitted."""
    other = await mine_in(world)
    own = await mine_in(world)
    # Allocations that end on the way must not end the asker's.
    asker = own.leg.client
    stored = {Kind.CHECKPOINT}
    for address, rules in declared_rules().items():
        method, path = address
        # These servers answer in their own processes: tests/integration/mlflow, test_prefect_page.
        if not rules or path in ("/mlflow/{path}", "/prefect/{path}"):
            continue
        rule = rules[0]
        where = f"{address} with a training process' token"
        if rule.action == Action.SERVE:
            answer = await asker.request(method, path.format_map(_Anything(own.path)), json={})
            assert answer.status_code == 401, where
        elif rule.action == Action.READ:
            params = {"timeout_s": 0, "limit": 1}
            url = path.format_map(_Anything(own.path))
            answer = await asker.request(method, url, json={}, params=params)
            if rule.grant in (Grant.ADMINISTRATOR, Grant.USER):
                assert answer.status_code == 403, where
            else:
                # Its own checkpoint may be read, but its files lie where the service opens nothing.
                allowed = answer.status_code not in (401, 403, 500)
                assert allowed or "its storage is not known" in answer.text, (
                    f"{where}: {answer.text}"
                )
        elif address in FOR_EVERYBODY:
            continue
        elif rule.action == Action.REPORT:
            answer = await ask(asker, address, other)
            assert answer.status_code == 403, f"{where}: {answer.text}"
        else:
            before = await everything(world)
            kept = rule.kind in stored or rule.action == Action.REGISTER
            for mine in [other] if kept else [other, own]:
                answer = await ask(asker, address, mine)
                said = refusal(answer)
                assert said is not None, f"{where}: {answer.status_code} {answer.text}"
                assert await everything(world) == before, where
            if rule.grant in (Grant.OWNER, Grant.OWNER_OR_TASKS):
                answer = await ask(asker, address, await submitted_by(world, own.leg.task_id))
                assert answer.status_code not in PASSED_OVER, f"{where}: {answer.text}"
                assert "token of allocation" not in (refusal(answer) or ""), where
    # It may change and delete the checkpoints that it stored.
    for address, rule in RULES.items():
        if rule.kind in stored and rule.grant == Grant.OWNER:
            mine = Mine(own.leg, await store(own.leg, 2), own.user_id)
            answer = await ask(asker, address, mine)
            assert answer.status_code not in PASSED_OVER, f"{address}: {answer.text}"


class _Anything(dict[str, Any]):
    """Fill the parts of a path for which the test has no value."""

    def __missing__(self, key: str) -> str:
        return "1"


async def submitted_by(world: World, task_id: str) -> Mine:
    """A running leg, a checkpoint of an experiment and a model that the task's process submitted."""
    leg = await world.leg(labels=["mine"], submitted_by=task_id)
    async with world.db.tx() as conn:
        owner = await conn.execute(sa.select(users.c.id).where(users.c.username == "determined"))
    owner_id = owner.scalar_one()
    model = await model_of(world, leg, owner_id, task_id)
    own_tasks = await tasks_of(world, owner_id, task_id)
    return Mine(leg, await store(leg, 1), owner_id, model, own_tasks)


async def test_an_experiment_remembers_the_task_that_submitted_it(
    world: World, people: People
) -> None:
    leg = await world.leg()
    config = (
        "{name: by a task, entrypoint: x, searcher: {name: custom, metric: loss, unit: epochs}}"
    )
    body = {"config": config, "unmanaged": True}
    made = await leg.client.post(f"{API}/experiments", json=body)
    assert made.status_code == 200, made.text
    experiment_id = made.json()["experiment"]["id"]
    (row,) = await world.rows(sa.select(experiments).where(experiments.c.id == experiment_id))
    assert (row.submitted_by, row.owner_id) == (leg.task_id, made.json()["experiment"]["userId"])
    by_user = (await people.owner.post(f"{API}/experiments", json=body)).json()["experiment"]["id"]
    change = {"name": "other"}
    # The next leg of the same task goes on with it; another task of the same owner may not.
    next_leg = await world.start(leg.experiment_id, leg.trial_id, leg.request_id, run_id=2)
    assert (
        await next_leg.client.patch(f"{API}/experiments/{experiment_id}", json=change)
    ).is_success
    for client, one in ((next_leg.client, by_user), ((await world.leg()).client, experiment_id)):
        assert (await client.patch(f"{API}/experiments/{one}", json=change)).status_code == 403


async def test_missing_objects_stay_404(world: World, people: People) -> None:
    mine = await mine_in(world)
    nothing = {
        "experiment_id": 999999,
        "trial_id": 999999,
        "allocation_id": "9.x.1",
        "task_id": "9.x",
        "uuid": str(uuid.uuid4()),
        "user_id": 999999,
        "model_name": "no such model",
        "template_name": "no such template",
        "pipeline_id": 999999,
        "token_id": 999999,
        "workspace_id": 999999,
        "project_id": 999999,
    }
    for address, rule in RULES.items():
        if address in FOR_EVERYBODY or isinstance(rule, MayNamed):
            continue
        if rule.grant == Grant.ADMINISTRATOR:
            continue
        answer = await ask(people.stranger, address, mine, **nothing)
        assert answer.status_code == 404, f"{address}: {answer.status_code} {answer.text}"
    wrong = await people.stranger.post(f"{API}/experiments/seven/pause")
    assert (wrong.status_code, "'seven'" in wrong.text) == (400, True)


async def test_everybody_reads(world: World, people: People) -> None:
    mine = await mine_in(world)
    for path in (
        f"experiments/{mine.leg.experiment_id}",
        f"trials/{mine.leg.trial_id}",
        f"checkpoints/{mine.checkpoint}",
        f"tasks/{mine.leg.task_id}/logs",
        f"models/{mine.model}/versions/1",
        f"models/{mine.model}/alias-history",
        "users",
    ):
        assert (await people.stranger.get(f"{API}/{path}")).status_code == 200, path


async def test_a_bulk_action_refuses_each_experiment_by_itself(
    world: World, people: People, service_app: FastAPI
) -> None:
    mine = await mine_in(world)
    me = (await people.stranger.get(f"{API}/me")).json()["user"]["id"]
    theirs = await world.experiment(owner_id=me)
    ids = [mine.leg.experiment_id, theirs, 999999]
    answer = await people.stranger.post(f"{API}/experiments/pause", json={"experimentIds": ids})
    assert {one["id"]: one["error"] for one in answer.json()["results"]} == {
        ids[0]: f"only its owner determined or an administrator may pause experiment {ids[0]}",
        theirs: "",
        999999: "not found: experiment 999999 does not exist",
    }


async def test_a_checkpoint_cannot_be_taken_over(world: World, people: People) -> None:
    mine, other = await mine_in(world), await world.leg()
    body = {"uuid": mine.checkpoint, "resources": {"evil.pt": "1"}, "state": "STATE_COMPLETED"}
    answer = await other.client.post(f"{API}/checkpoints", json=body)
    assert answer.status_code == 409
    assert "of another experiment" in answer.text
    of = checkpoints.c.uuid == uuid.UUID(mine.checkpoint)
    (row,) = await world.rows(sa.select(checkpoints).where(of))
    assert (row.experiment_id, "evil.pt" in row.resources) == (mine.leg.experiment_id, False)
    (row,) = await world.rows(sa.select(trials).where(trials.c.id == other.trial_id))
    assert row.latest_checkpoint is None


async def test_users_without_the_right_to_it_change_no_rights(world: World, people: People) -> None:
    mine = await mine_in(world)
    answer = await people.owner.patch(
        f"{API}/users/{mine.user_id}", json={"admin": True, "username": "root"}
    )
    assert answer.status_code == 403
    assert answer.json()["error"]["error"] == (
        f"only an administrator may change admin, username of user {mine.user_id}"
    )
    process = await mine.leg.client.patch(f"{API}/users/{mine.user_id}", json={"displayName": "me"})
    assert (process.status_code, "training process" in process.text) == (403, True)


async def test_a_checkpoint_without_owner_is_for_administrators(
    world: World, people: People
) -> None:
    body = {"uuid": str(uuid.uuid4())}
    assert (await people.owner.post(f"{API}/checkpoints", json=body)).status_code == 403
    assert (await people.admin.post(f"{API}/checkpoints", json=body)).status_code == 200
    named = {"checkpointUuids": [body["uuid"]]}
    answer = await people.owner.request("DELETE", f"{API}/checkpoints", json=named)
    assert answer.status_code == 403
    assert "it belongs to no user" in answer.text
    answer = await people.admin.request("DELETE", f"{API}/checkpoints", json=named)
    assert answer.status_code == 200


async def test_owning_is_remembered_and_not_owning_is_not(world: World) -> None:
    asked: list[Any] = []

    class Counting:
        def tx(self) -> Any:
            asked.append(1)
            return world.db.tx()

    owners = Owners(cast(Database, Counting()), size=1)
    mine = await mine_in(world)
    trial = mine.leg.trial_id
    for _ in range(2):
        found = await owners.find(Kind.TRIAL, [trial], mine.user_id)
        assert found == {trial: Owner(mine.user_id, "determined")}, found
    assert len(asked) == 1
    for _ in range(2):
        assert (await owners.find(Kind.TASK, ["9.x", "no-number.x"], mine.user_id)) == {}
        assert (await owners.find(Kind.TRIAL, [trial], 999))[trial] == Owner(
            mine.user_id, "determined"
        )
    assert len(asked) == 5
    # Another thing takes the place of the first.
    await owners.find(Kind.EXPERIMENT, [mine.leg.experiment_id], mine.user_id)
    await owners.find(Kind.TRIAL, [trial], mine.user_id)
    assert len(asked) == 7


async def test_a_line_of_one_task_sets_off_no_policy_of_another(
    world: World, people: People
) -> None:
    policies = [{"name": "bad", "pattern": "bad", "action": "cancel_retries"}]
    mine = await mine_in(world)
    config = {"searcher": SEARCHER, "hyperparameters": {}, "log_policies": policies}
    victim = await world.leg(config=config)
    for allocation_id, matches in ((victim.allocation_id, 0), (f"{mine.leg.task_id}.1", 0)):
        line = {"taskId": mine.leg.task_id, "allocationId": allocation_id, "log": "bad\n"}
        answer = await people.owner.post(f"{API}/task/logs", json={"logs": [line]})
        assert answer.status_code == 200
        assert len(await world.rows(sa.select(log_policy_matches))) == matches
    line = {"taskId": victim.task_id, "allocationId": victim.allocation_id, "log": "bad\n"}
    await people.owner.post(f"{API}/task/logs", json={"logs": [line]})
    assert len(await world.rows(sa.select(log_policy_matches))) == 1
