"""What lies in a workspace that a user may not look into does not exist for that user.

Two users have a role in a workspace each, and the same things with words of their own (:class:`Mine`). Each
asks every route that reads, about its own things and about the other's.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import re
import tarfile
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.dialects.postgresql import insert

from determined.common.cluster_config import ClusterConfig
from determined_registry.database.tables import (
    agents,
    allocations,
    checkpoints,
    deletions,
    experiments,
    kept_runs,
    live_metrics,
    log_policy_matches,
    mlflow_experiments,
    mlflow_runs,
    model_alias_history,
    model_aliases,
    model_definitions,
    model_versions,
    models,
    pipeline_experiments,
    pipeline_steps,
    pipelines,
    projects,
    retraining_runs,
    retrainings,
    search_events,
    slots,
    task_logs,
    tasks,
    templates,
)
from determined_service.access.rules import Action
from determined_service.access.sessions import open_session
from determined_service.base import topics
from determined_service.reference import declared_rules
from tests.integration.roles import give, put_mode, take, user_id, workspace
from tests.integration.service_api.world import SEARCHER, Leg, World, report
from tests.waiting import TIMEOUT_S, until_async

KINDS = {"commands": "COMMAND", "notebooks": "NOTEBOOK", "shells": "SHELL"}
KINDS |= {"tensorboards": "TENSORBOARD", "tasks": "GENERIC"}


@dataclass(frozen=True)
class Mine:
    """One user's things. ``word`` is part of each name, note, tag, metric, file and line of a log."""

    word: str
    client: httpx.AsyncClient
    user_id: int
    workspace_id: int
    project_id: int
    experiment_id: int
    trial_id: int
    leg: Leg
    job_id: str
    checkpoint: str
    model_id: int
    pipeline_id: int
    deletion_id: int
    tasks: dict[str, str] = field(default_factory=dict)

    @property
    def trial_task(self) -> str:
        return self.leg.task_id

    @property
    def path(self) -> dict[str, Any]:
        """The values of the parts of paths."""
        return {
            "workspace_id": self.workspace_id,
            "project_id": self.project_id,
            "experiment_id": self.experiment_id,
            "trial_id": self.trial_id,
            "allocation_id": f"{self.trial_task}.1",
            "resources_id": f"{self.trial_task}.1.agent-1",
            "uuid": self.checkpoint,
            "model_name": self.word,
            "version": 1,
            "alias": self.word,
            "pipeline_id": self.pipeline_id,
            "template_name": self.word,
            "deletion_id": self.deletion_id,
            "job_id": self.job_id,
            "key": self.word[2:7].upper(),
        }

    @property
    def marks(self) -> list[str]:
        """What no answer for another may hold."""
        return [self.word, self.job_id, self.checkpoint, self.trial_task, *self.tasks.values()]


SHARED = {
    "agent_id": "agent-1",
    "slot_id": "0",
    "user_id": 1,
    "group_id": 1,
    "pool_name": "default",
    "workload_type": "EXPERIMENT",
    "username": "admin",
    "path": f"{uuid.uuid4().hex}.bin",
    "rest": "",
}
"""Parts of paths that name nobody's things."""
ELSEWHERE = ("/mlflow", "/prefect", "/internal/", "/det/", "/plots/", "/task-login")
"""MLflow's pages: tests/integration/mlflow/test_scope.py; Prefect's, and plots by links: below. Others show
a form to everybody."""
QUERIES: Mapping[str, dict[str, Any]] = {
    "/metrics/": {"trialIds": "{trial_id}", "group": "training"},
    "/api/v1/report": {"experimentIds": "{experiment_id}"},
    "time-series": {"trialIds": "{trial_id}"},
    "/resources/allocation/aggregated": {
        "startDate": "2020-01-01",
        "start_date": "2026-11-01",
        "endDate": "2020-02-01",
        "end_date": "2027-01-01",
    },
    "/resources/allocation/": {"timestamp_after": "2026-01-01", "timestamp_before": "2030-01-01"},
    "/signals/preemption": {"timeout_seconds": 0},
    "/searcher/operation": {"timeout_s": 0},
    "/searcher_events": {"timeout_s": 0},
}
BODIES: Mapping[str, Any] = {
    "/file": {"path": "{word}.py"},
    "/visits": {"port": "", "path": "/"},
    "/preview-hp-search": {"config": {}, "seed": 1},
    "/searcher/preview": {},
}


def reads() -> list[tuple[str, str]]:
    """Every route for users that reads, and every ``GET``."""
    return sorted(
        (method, path)
        for (method, path), rules in declared_rules().items()
        if (method == "GET" or (rules and rules[0].action == Action.READ))
        and not path.startswith(ELSEWHERE)
    )


async def _person(world: World, word: str) -> tuple[int, int, httpx.AsyncClient]:
    """A user with the role Editor in a workspace of its own."""
    app = world.app
    own = await user_id(app, f"user-{word[::-1]}")
    place = await workspace(app, word)
    await give(app, f"user-{word[::-1]}", "Editor", place)
    async with app.state.db.tx() as conn:
        token = await open_session(conn, own, 1)
    return own, place, world.client(token)


async def fill(world: World, word: str) -> Mine:
    """The things of a new user in a new workspace, which is called ``word``."""
    own, place, client = await _person(world, word)
    now = datetime.datetime.now(datetime.UTC)
    async with world.db.tx() as conn:
        project = await conn.scalar(
            sa.insert(projects)
            .values(workspace_id=place, name=word, key=word[2:7].upper(), description=word)
            .returning(projects.c.id)
        )
        await conn.execute(
            insert(model_definitions)
            .values(hash=word, archive=_archive(f"{word}.py"), size=10, owner_id=own)
            .on_conflict_do_nothing()
        )
    hyperparameters = {word: {"type": "const", "val": word}}
    # Paused until its trial has slots: the service's loops would ask for some.
    experiment_id = await world.experiment(
        word,
        state="PAUSED",
        owner_id=own,
        project_id=project,
        description=word,
        notes=word,
        labels=[word],
        reason=word,
        model_def_hash=word,
        external_id=word,
        original_config=f"name: {word}",
        config={
            "name": word,
            "searcher": SEARCHER,
            "hyperparameters": hyperparameters,
            "entrypoint": word,
            "resources": {"resource_pool": "default"},
        },
    )
    trial_id, request_id = await world.trial(experiment_id, hparams={word: word}, reason=word)
    async with world.db.tx() as conn:
        await conn.execute(insert(agents).values(_AGENT).on_conflict_do_nothing())
        await conn.execute(insert(slots).values(_SLOT).on_conflict_do_nothing())
    leg = await world.start(experiment_id, trial_id, request_id)
    await leg.store(
        report(1, **{word: 0.5, "loss": 0.5}), report(1, "validation", **{word: 0.5, "loss": 0.1})
    )
    checkpoint = uuid.uuid4()
    made = {name: str(uuid.uuid4()) for name in KINDS}
    resources = {"resource_pool": "default", "slots": 0, "priority": None}
    async with world.db.tx() as conn:
        await conn.execute(
            sa.update(experiments).where(experiments.c.id == experiment_id).values(state="ACTIVE")
        )
        await conn.execute(
            sa.update(allocations)
            .where(allocations.c.id == leg.allocation_id)
            .values(assigned_at=now, requested_at=now, slots=1)
        )
        await conn.execute(
            sa.insert(checkpoints).values(
                uuid=checkpoint,
                state="COMPLETED",
                task_id=leg.task_id,
                allocation_id=leg.allocation_id,
                experiment_id=experiment_id,
                trial_id=trial_id,
                steps_completed=1,
                resources={f"{word}.pt": 1},
                user_metadata={"word": word},
            )
        )
        await conn.execute(
            sa.insert(tasks),
            [
                {
                    "id": made[plural],
                    "kind": kind,
                    "owner_id": own,
                    "workspace_id": place,
                    "name": word,
                    "config": {"description": word, "resources": resources},
                    "state": "ACTIVE",
                    "job_id": uuid.uuid4(),
                    "data": {"private_key": "", "public_key": "", "key_type": "ED25519"},
                }
                for plural, kind in KINDS.items()
            ],
        )
        for task_id in (leg.task_id, *made.values()):
            await conn.execute(
                sa.insert(task_logs).values(
                    task_id=task_id,
                    timestamp=now,
                    allocation_id=word,
                    agent_id=word,
                    log=f"{word}\n".encode(),
                )
            )
        await conn.execute(
            sa.insert(log_policy_matches).values(
                trial_id=trial_id, run_id=1, name=word, agent_id="agent-1", line=word
            )
        )
        await conn.execute(
            sa.insert(search_events).values(
                experiment_id=experiment_id, id=1, event={"type": "initial", "word": word}
            )
        )
        model_id = await conn.scalar(
            sa.insert(models)
            .values(
                name=word,
                description=word,
                notes=word,
                labels=[word],
                tags={word: word},
                owner_id=own,
                workspace_id=place,
                last_version=1,
            )
            .returning(models.c.id)
        )
        version = {"model_id": model_id, "version": 1, "checkpoint_uuid": checkpoint}
        await conn.execute(
            sa.insert(model_versions).values(
                **version, name=word, comment=word, notes=word, owner_id=own
            )
        )
        alias = {"model_id": model_id, "alias": word}
        await conn.execute(sa.insert(model_aliases).values(**alias, version=1))
        await conn.execute(
            sa.insert(model_alias_history).values(**alias, to_version=1, user_id=own)
        )
        plan = {"evaluate": "a:b", "rule": {"metric": word}}
        retraining_id = await conn.scalar(
            sa.insert(retrainings)
            .values(model_id=model_id, owner_id=own, plan=plan, config="{}")
            .returning(retrainings.c.id)
        )
        await conn.execute(
            sa.insert(live_metrics).values(retraining_id=retraining_id, name=word, value=0.5)
        )
        await conn.execute(
            sa.insert(retraining_runs).values(
                retraining_id=retraining_id, state="COMPLETED", cause=word, reason=word
            )
        )
        step = {"name": word, "experiment": {"name": word}}
        pipeline_id = await conn.scalar(
            sa.insert(pipelines)
            .values(
                name=word,
                owner_id=own,
                workspace_id=place,
                plan=json.dumps({"name": word, "steps": [step]}),
                state="RUNNING",
                reason=word,
            )
            .returning(pipelines.c.id)
        )
        of = {"pipeline_id": pipeline_id, "step": 0}
        await conn.execute(sa.insert(pipeline_steps).values(**of, state="RUNNING", reason=word))
        await conn.execute(
            sa.insert(pipeline_experiments).values(
                **of, item=0, attempt=1, state="RUNNING", experiment_id=experiment_id, reason=word
            )
        )
        await conn.execute(sa.insert(kept_runs).values(experiment_id=experiment_id))
        await conn.execute(
            sa.insert(templates).values(
                name=word, config={"description": word}, owner_id=own, workspace_id=place
            )
        )
        deletion_id = await conn.scalar(sa.text("SELECT nextval('deletions_id_seq')"))
        await conn.execute(
            sa.insert(tasks).values(
                id=f"checkpoint-gc.{deletion_id}",
                kind="CHECKPOINT_GC",
                owner_id=own,
                name=word,
                state="ERROR",
                reason=word,
            )
        )
        await conn.execute(
            sa.insert(deletions).values(
                id=deletion_id, kind="tensorboard", experiment_id=experiment_id
            )
        )
        await conn.execute(
            sa.insert(mlflow_experiments).values(experiment_id=experiment_id, tags={word: word})
        )
        await conn.execute(
            sa.insert(mlflow_runs).values(trial_id=trial_id, name=word, tags={word: word})
        )
        job_id = await conn.scalar(
            sa.select(experiments.c.job_id).where(experiments.c.id == experiment_id)
        )
    return Mine(
        word,
        client,
        own,
        place,
        int(project or 0),
        experiment_id,
        trial_id,
        leg,
        str(job_id),
        str(checkpoint),
        int(model_id or 0),
        int(pipeline_id or 0),
        int(deletion_id or 0),
        made,
    )


_AGENT = {
    "id": "agent-1",
    "resource_pool": "default",
    "session": uuid.uuid4(),
    "last_heartbeat": datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC),
}
_SLOT = {"agent_id": "agent-1", "slot_id": 0, "device": {"type": "cpu"}}


def _archive(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        one = tarfile.TarInfo(name)
        one.size = 1
        tar.addfile(one, io.BytesIO(b"x"))
    return out.getvalue()


@pytest.fixture
async def two(service_app: FastAPI, world: World) -> AsyncIterator[tuple[Mine, Mine]]:
    """Two users with a workspace each, in a cluster with roles."""
    found = [await fill(world, word) for word in ("zqalphaqz", "zqbetaqz")]
    await put_mode(service_app)
    yield found[0], found[1]


def _task_in(path: str, mine: Mine) -> str:
    kind = next((kind for kind in mine.tasks if f"/{kind}/" in path), "")
    return mine.tasks.get(kind, mine.trial_task)


async def _ask(
    asker: Mine, method: str, path: str, values: Mapping[str, Any], word: str
) -> httpx.Response:
    def filled(given: Any) -> Any:
        if isinstance(given, dict):
            return {key: filled(value) for key, value in given.items()}
        return given.format(**values, word=word) if isinstance(given, str) else given

    params = next((filled(found) for key, found in QUERIES.items() if key in path), {})
    body = next((filled(found) for key, found in BODIES.items() if path.endswith(key)), None)
    address = path.format(**values)
    return await asker.client.request(
        method, address, params=params, json=body if method != "GET" else None
    )


async def test_nothing_of_the_others_is_in_any_answer(two: tuple[Mine, Mine]) -> None:
    alpha, beta = two
    seen = set()
    for method, path in reads():
        for asker, other in ((alpha, beta), (beta, alpha)):
            for named in (asker, other):
                values = {**SHARED, **named.path, "task_id": _task_in(path, named)}
                answer = await _ask(asker, method, path, values, named.word)
                assert answer.status_code < 500, (method, path, answer.text)
                text = answer.text
                if named is other:
                    # A refusal says again what was asked for.
                    for value in (*values.values(), other.word):
                        if len(str(value)) >= 8:
                            text = text.replace(str(value), "") if answer.is_error else text
                found = [mark for mark in other.marks if mark in text]
                assert not found, (method, path, named is other, answer.text[:2000])
                if named is asker and asker.word in answer.text:
                    seen.add((method, path))
    # The words are where they are looked for.
    assert len(seen) > 40, sorted(seen)


async def test_a_token_of_one_workspace_shows_nothing_else(
    service_app: FastAPI, world: World, two: tuple[Mine, Mine]
) -> None:
    """Its user sees both workspaces, and makes a token of one."""
    alpha, beta = two
    name = f"user-{alpha.word[::-1]}"
    await give(service_app, name, "TokenCreator")
    await give(service_app, name, "Viewer", beta.workspace_id)
    other = f"/api/v1/experiments/{beta.experiment_id}"

    async def sees_both() -> bool:
        return (await alpha.client.get(other)).status_code == 200

    await until_async("it sees both", sees_both)
    body = {"userId": alpha.user_id, "readOnly": True, "workspaceId": alpha.workspace_id}
    for wrong, status, said in (
        ({"readOnly": False}, 400, "a token of one workspace is for reading alone"),
        ({"workspaceId": 99999}, 404, "workspace 99999 does not exist"),
    ):
        answer = await alpha.client.post("/api/v1/tokens", json=body | wrong)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
    made = (await alpha.client.post("/api/v1/tokens", json=body)).raise_for_status().json()
    limited = replace(alpha, client=world.client(made["token"]))
    seen = set()
    for method, path in reads():
        for named in (alpha, beta):
            values = {**SHARED, **named.path, "task_id": _task_in(path, named)}
            answer = await _ask(limited, method, path, values, named.word)
            assert answer.status_code < 500, (method, path, answer.text)
            text = answer.text
            if named is beta:
                for value in (*values.values(), beta.word):
                    if len(str(value)) >= 8:
                        text = text.replace(str(value), "") if answer.is_error else text
            found = [mark for mark in beta.marks if mark in text]
            assert not found, (method, path, named is beta, answer.text[:2000])
            if named is alpha and alpha.word in answer.text:
                seen.add((method, path))
    assert len(seen) > 40, sorted(seen)
    (token,) = (await limited.client.get("/api/v1/tokens")).json()["tokenInfo"]
    assert (token["id"], token["workspaceName"]) == (made["tokenId"], alpha.word)
    launch = {"config": {"entrypoint": ["true"]}, "workspaceId": alpha.workspace_id}
    answer = await limited.client.post("/api/v1/commands", json=launch)
    assert (answer.status_code, "good for reading alone" in answer.text) == (403, True)
    # Without roles nothing would keep it there.
    await put_mode(service_app, ClusterConfig())

    async def is_refused() -> bool:
        return (await limited.client.get("/api/v1/me")).status_code == 401

    await until_async("it is worth nothing", is_refused)
    answer = await alpha.client.post("/api/v1/tokens", json=body)
    assert (answer.status_code, "this cluster has no roles" in answer.text) == (400, True)


async def test_the_others_things_are_missing_in_the_words_of_what_does_not_exist(
    two: tuple[Mine, Mine],
) -> None:
    alpha, beta = two
    never = {
        "experiment_id": 99999,
        "trial_id": 99999,
        "allocation_id": "never",
        "resources_id": "never",
        "uuid": str(uuid.uuid4()),
        "model_name": "never",
        "pipeline_id": 99999,
        "template_name": "never",
        "deletion_id": 99999,
        "job_id": str(uuid.uuid4()),
        "key": "NEVER",
        "workspace_id": 99999,
        "project_id": 99999,
        "version": 1,
        "alias": "never",
    }
    asked = 0
    for method, path in reads():
        if not re.search(rf"\{{({'|'.join(never)}|task_id)\}}", path):
            continue
        task = "99999.00000000-0000-0000-0000-000000000000"
        theirs = {**SHARED, **beta.path, "task_id": _task_in(path, beta)}
        nobodys = {**SHARED, **never, "task_id": task}
        answers = [
            await _ask(alpha, method, path, values, word)
            for values, word in ((theirs, beta.word), (nobodys, "never"))
        ]
        texts = [answer.text for answer in answers]
        for values, place in ((theirs, 0), (nobodys, 1)):
            named = [str(value) for name, value in values.items() if name not in SHARED]
            for value in sorted(named, key=len, reverse=True):
                texts[place] = re.sub(rf"\b{re.escape(value)}\b", "<it>", texts[place])
        assert answers[0].status_code == answers[1].status_code, (method, path, texts)
        assert answers[0].is_error, (method, path, texts)
        assert texts[0] == texts[1], (method, path)
        asked += 1
    assert asked > 40


async def test_a_followed_log_ends_with_the_right_to_see_it(
    service_app: FastAPI, two: tuple[Mine, Mine]
) -> None:
    alpha, _ = two
    path = f"/api/v1/trials/{alpha.trial_id}/logs"

    async def follow() -> list[str]:
        answer = await alpha.client.get(path, params={"follow": True}, timeout=TIMEOUT_S)
        return answer.text.splitlines()

    following = asyncio.create_task(follow())
    hub = service_app.state.hub
    await until_async("followed", lambda: topics.logs(alpha.trial_task) in hub._waiters)
    await take(service_app, f"user-{alpha.word[::-1]}")
    lines = await following
    assert alpha.word in lines[0]
    assert f"task '{alpha.trial_task}' does not exist" in lines[-1]
    assert (await alpha.client.get(path)).status_code == 404


CONFIG = """{name: x, entrypoint: x, hyperparameters: {}, workspace: zqalphaqz, project: zqalphaqz,
searcher: {name: single, metric: loss, max_length: {batches: 1}%s}}"""


async def test_what_a_body_names_is_missing_too(
    service_app: FastAPI, two: tuple[Mine, Mine]
) -> None:
    alpha, beta = two

    def bodies(of: Mine | None) -> dict[str, tuple[str, Any]]:
        number, trial = (99999, 99999) if of is None else (of.experiment_id, of.trial_id)
        checkpoint = str(uuid.UUID(int=7)) if of is None else of.checkpoint
        name = "never" if of is None else of.word
        task = "never" if of is None else of.tasks["tasks"]
        job = str(uuid.UUID(int=8)) if of is None else of.job_id
        place = {"workspaceId": alpha.workspace_id}
        trial_source = CONFIG % f", source_trial_id: {trial}"
        start = CONFIG % f", source_checkpoint_uuid: {checkpoint}"
        return {
            "fork": ("experiments", {"config": CONFIG % "", "parentId": number}),
            "template": ("experiments", {"config": CONFIG % "", "template": name}),
            "trial": ("experiments", {"config": trial_source, "validateOnly": True}),
            "checkpoint": ("experiments", {"config": start}),
            "tensorboard": ("tensorboards", {"experimentIds": [number], **place}),
            "tensorboard of a trial": ("tensorboards", {"trialIds": [trial], **place}),
            "command": (
                "commands",
                {"templateName": name, "config": {"entrypoint": "x"}, **place},
            ),
            "task": (
                "generic-tasks",
                {"config": "entrypoint: x", "parentId": task, "projectId": alpha.project_id},
            ),
            "fork of a task": (
                "generic-tasks",
                {"config": "", "forkedFrom": task, "projectId": alpha.project_id},
            ),
            "job": ("job-queues", {"updates": [{"jobId": job, "priority": 3}]}),
            "beside": ("job-queues", {"updates": [{"jobId": alpha.job_id, "aheadOf": job}]}),
            "event": (
                f"models/{alpha.word}/retraining",
                {
                    "config": CONFIG % "",
                    "plan": {
                        "evaluate": "a:b",
                        "rule": {"metric": "loss"},
                        "on": [{"experiment": {"id": number}}],
                    },
                },
            ),
        }

    for what, (path, body) in bodies(beta).items():
        _, never = bodies(None)[what]
        method = "PUT" if path.endswith("retraining") else "POST"
        answers = [
            await alpha.client.request(method, f"/api/v1/{path}", json=one) for one in (body, never)
        ]
        texts = [answer.text for answer in answers]
        for text in (beta.word, beta.job_id, beta.checkpoint, beta.tasks["tasks"]):
            texts[0] = texts[0].replace(text, "<it>")
        for text in ("never", str(uuid.UUID(int=7)), str(uuid.UUID(int=8)), "99999"):
            texts[1] = texts[1].replace(text, "<it>")
        texts[0] = re.sub(rf"\b({beta.experiment_id}|{beta.trial_id})\b", "<it>", texts[0])
        texts[1] = re.sub(rf"\b({beta.experiment_id}|{beta.trial_id})\b", "<it>", texts[1])
        assert answers[0].status_code in (400, 404), (what, texts)
        assert texts[0] == texts[1], what
    # And its own are found.
    answer = await alpha.client.post(
        "/api/v1/experiments",
        json={"config": CONFIG % f", source_trial_id: {alpha.trial_id}", "validateOnly": True},
    )
    assert "has no checkpoint" in answer.text
    chosen = {"filters": {"name": "zq"}}
    answer = await alpha.client.post("/api/v1/experiments/archive", json=chosen)
    assert answer.json()["results"] == []
    answer = await alpha.client.post("/api/v1/experiments/pause", json=chosen)
    assert [one["id"] for one in answer.json()["results"]] == [alpha.experiment_id]
    answer = await alpha.client.put(
        f"/api/v1/experiments/by-external-id/{beta.word}",
        json={"config": CONFIG % "", "unmanaged": True},
    )
    assert answer.status_code in (403, 409)
    assert str(beta.experiment_id) not in answer.json()["error"]["error"]


async def test_a_beginning_stands_for_checkpoints_that_are_seen(two: tuple[Mine, Mine]) -> None:
    alpha, beta = two

    async def beginning(text: str) -> Any:
        answer = await alpha.client.get("/api/v1/checkpoints", params={"uuidBeginning": text})
        assert answer.status_code == 200, answer.text
        return answer.json()["uuids"]

    assert await beginning(alpha.checkpoint[:12]) == [alpha.checkpoint]
    assert await beginning(beta.checkpoint[:12]) == await beginning(beta.checkpoint) == []


async def test_nobody_sees_a_tensorboard_of_what_it_does_not_see(
    service_app: FastAPI, world: World, two: tuple[Mine, Mine]
) -> None:
    alpha, beta = two
    board = alpha.tasks["tensorboards"]
    path = f"/api/v1/tensorboards/{board}"
    for shown, status in (
        ({"experiment_ids": [alpha.experiment_id], "trial_ids": [alpha.trial_id]}, 200),
        ({"experiment_ids": [alpha.experiment_id, beta.experiment_id], "trial_ids": []}, 404),
        ({"experiment_ids": [], "trial_ids": [beta.trial_id]}, 404),
        ({"experiment_ids": [99999], "trial_ids": []}, 200),
    ):
        async with world.db.tx() as conn:
            await conn.execute(sa.update(tasks).where(tasks.c.id == board).values(data=shown))
        assert (await alpha.client.get(path)).status_code == status, shown
        listed = (await alpha.client.get("/api/v1/tensorboards")).text
        assert (board in listed) == (status == 200)


async def test_prefects_pages_open_for_those_who_see_everything(
    service_app: FastAPI, two: tuple[Mine, Mine]
) -> None:
    alpha, _ = two
    service_app.state.settings.prefect_api_url = "http://127.0.0.1:1/api"
    path = "/prefect/api/flow_runs/count"
    answer = await alpha.client.get(path)
    assert answer.status_code == 403
    assert "know no workspaces" in answer.text
    await give(service_app, f"user-{alpha.word[::-1]}", "Viewer")

    async def is_passed_on() -> bool:
        return (await alpha.client.get(path)).status_code != 403

    await until_async("the role counts", is_passed_on)


async def test_the_queue_counts_everybodys_jobs(two: tuple[Mine, Mine]) -> None:
    alpha, _ = two
    (pool,) = (await alpha.client.get("/api/v1/job-queues/stats")).json()["results"]
    shown = (await alpha.client.get("/api/v1/job-queues-v2")).json()
    assert pool["stats"]["queuedCount"] + pool["stats"]["scheduledCount"] == 2
    assert [job["full"]["name"] for job in shown["jobs"]] == [alpha.word]
    assert shown["pagination"]["total"] == 1
    slots = (await alpha.client.get("/api/v1/agents/agent-1")).json()["agent"]["containers"]
    assert sorted(slots)[-1] == "other-2"
