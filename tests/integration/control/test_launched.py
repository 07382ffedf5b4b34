"""Launched tasks by the REST API: launch, queue, priority, rights, secrets, end."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from typing import Any

import httpx

from determined_service.access.tokens import token_hash
from determined_service.lifecycle import idle
from determined_service.lifecycle.kinds.table import KINDS
from determined_service.loops.reconciler import Reconciler
from determined_service.state.change import changing
from tests.integration.control.world import Trial, World, ok

COMMANDS = "/api/v1/commands"
CONTEXT = [
    {"path": "a.txt", "type": 48, "mode": 0o644, "content": base64.b64encode(b"hi").decode()}
]


async def launch(world: World, words: list[str] | None = None, **config: Any) -> dict[str, Any]:
    given = {"entrypoint": words or ["true"], **config}
    answer: dict[str, Any] = ok(await world.user.post(COMMANDS, json={"config": given}))
    return answer


async def started(world: World) -> Trial:
    process = await world.launched()
    ok(await process.started())
    return process


async def shown(world: World, task_id: str) -> dict[str, Any]:
    command: dict[str, Any] = ok(await world.user.get(f"{COMMANDS}/{task_id}"))["command"]
    return command


async def queue(world: World) -> list[dict[str, Any]]:
    world.app.state.queue._kept_until = 0.0
    jobs = ok(await world.user.get("/api/v1/job-queues-v2"))["jobs"]
    return [one["full"] for one in jobs]


async def refusal(world: World, path: str = COMMANDS, **body: Any) -> str:
    answer = await world.user.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["message"])


async def another_user(world: World, name: str) -> httpx.AsyncClient:
    """A client of a user who is not the owner or an administrator."""
    token = uuid.uuid4().hex
    await world.rows(f"INSERT INTO users (username) VALUES ('{name}') RETURNING id")
    await world.rows(
        "INSERT INTO user_sessions (user_id, token_hash, expires_at) "
        f"SELECT id, '{token_hash(token)}', now() + interval '1 h' FROM users "
        f"WHERE username = '{name}' RETURNING id"
    )
    return world.client(token)


async def test_a_command_from_launch_to_end(world: World) -> None:
    await world.register(slots=1)
    answer = await launch(
        world,
        ["sh", "-c", "exit 3"],
        description="three",
        environment={"environment_variables": ["A=1"]},
    )
    command = answer["command"]
    assert command["description"] == "three"
    assert answer["config"]["resources"]["resource_pool"] == "default"
    process = await started(world)
    spec = process.spec
    assert (spec["task_type"], spec["entrypoint"]) == ("COMMAND", ["sh", "-c", "exit 3"])
    assert (spec["environment_variables"], spec["nodes"]) == (["A=1"], 1)
    running = await shown(world, command["id"])
    assert (running["state"], running["container"]["parent"]) == ("STATE_RUNNING", "a1")
    (job,) = await queue(world)
    assert (job["type"], job["entityId"], job["isPreemptible"]) == (
        "TYPE_COMMAND",
        command["id"],
        False,
    )
    assert (job["jobId"], job["allocatedSlots"]) == (command["jobId"], 1)
    counts = ok(await world.user.get("/api/v1/tasks/count"))
    assert counts == {"commands": 1, "notebooks": 0, "shells": 0, "tensorboards": 0}

    ok(await process.exited(exit_code=3))
    ended = await shown(world, command["id"])
    assert (ended["state"], ended["taskState"]) == ("STATE_TERMINATED", "STATE_ERROR")
    assert (ended["exitCode"], ended["exitStatus"]) == (3, "process exited with code 3")
    assert await queue(world) == []
    entity = f"task:{command['id']}"
    (made,) = await world.rows(
        f"SELECT payload FROM prefect_outbox WHERE entity = '{entity}' AND kind = 'create_task_run'"
    )
    assert made["payload"] == {"flow": "command", "name": "three", "pool": "default"}
    assert await world.told_prefect(entity) == ["three", "Pending", "Running", "Failed"]


async def test_a_single_word_is_for_a_shell(world: World) -> None:
    await world.register(slots=1)
    command = (await launch(world, ["env | grep X"]))["command"]
    assert (await world.launched()).spec["entrypoint"] == "env | grep X"
    config = ok(await world.user.get(f"{COMMANDS}/{command['id']}"))["config"]
    assert config["entrypoint"] == ["env | grep X"]


async def test_a_command_without_a_program_runs_its_hooks(world: World) -> None:
    await world.register(slots=1)
    answer = ok(await world.user.post(COMMANDS, json={"config": {}}))
    (remark,) = answer["remarks"]
    assert remark.startswith("entrypoint is not given: only startup hooks run")
    process = await started(world)
    assert process.spec["entrypoint"] == "true"
    ok(await process.exited())
    assert (await shown(world, answer["command"]["id"]))["taskState"] == "STATE_COMPLETED"
    missing = await refusal(world, "/api/v1/generic-tasks", config="debug: true")
    assert "entrypoint: required field is missing" in missing


async def test_an_ignored_weight_gets_a_remark(world: World) -> None:
    await world.register(slots=1)
    answer = await launch(world, resources={"weight": 3, "slots": 1})
    (remark,) = answer["remarks"]
    assert remark.startswith("resources.weight (3) is stored but ignored: a task has all of its")


async def test_a_launch_that_is_sent_again_is_the_same_command(world: World) -> None:
    body = {"config": {"entrypoint": ["true"], "resources": {"slots": 0}}, "idempotencyKey": "k"}
    answers = await asyncio.gather(*(world.user.post(COMMANDS, json=body) for _ in range(4)))
    first, *others = [ok(answer)["command"]["id"] for answer in answers]
    assert others == [first] * 3
    other = ok(await world.user.post(COMMANDS, json={**body, "idempotencyKey": "l"}))["command"]
    assert other["id"] != first
    # Keys are separate for each user.
    stranger = await another_user(world, "stranger")
    assert ok(await stranger.post(COMMANDS, json=body))["command"]["id"] != first


async def test_the_files_that_were_sent_are_in_its_order(world: World) -> None:
    await world.register(slots=1)
    body = {"config": {"entrypoint": ["cat", "a.txt"]}, "files": CONTEXT}
    command = ok(await world.user.post(COMMANDS, json=body))["command"]
    process = await world.launched()
    assert process.spec["model_def_hash"]
    path = f"/api/v1/tasks/{command['id']}/context_directory"
    assert ok(await world.user.get(path))["b64Tgz"]
    words = {"entrypoint": ["ls"], "work_dir": "/data"}
    said = await refusal(world, config=words, files=CONTEXT)
    assert said.startswith("work_dir: cannot be given together with a context directory")


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"config": {"entrypoint": ["a"], "resources": {"slot": 1}}},
        "resources.slot: unknown field; did you mean 'slots'?",
    ),
    (
        {"config": {"entrypoint": ["a"], "resources": {"slots": 3}}},
        "request unfulfillable: resources.slots: 3 slots are more than any agent",
    ),
    ({"config": {"entrypoint": ["a"], "resources": {"resource_pool": "gpu"}}}, "'gpu'"),
    ({"config": {"entrypoint": ["a"]}, "templateName": "t"}, "no template 't'"),
    (
        {"config": {"entrypoint": ["a"]}, "workspaceId": 7},
        "workspaceId: workspace 7 does not exist",
    ),
]


async def test_impossible_submissions_are_refused(world: World) -> None:
    # Two agents of two slots: a trial of four would spread over them, a command of three never does.
    await world.register(slots=2)
    await world.register(slots=2, agent_id="a2")
    for body, says in REFUSED:
        assert says in await refusal(world, **body)
    assert await world.rows("SELECT 1 FROM tasks") == []


async def test_priority_orders_the_queue_and_names_the_first_to_end(world: World) -> None:
    await world.register(slots=1)
    first = (await launch(world))["command"]
    await started(world)
    second, third = [(await launch(world))["command"] for _ in range(2)]
    answer = ok(
        await world.user.post(f"{COMMANDS}/{third['id']}/set_priority", json={"priority": 7})
    )
    assert (answer["command"]["priority"], answer["remarks"]) == (7, [])
    waiting = [job["entityId"] for job in await queue(world)]
    assert waiting == [first["id"], third["id"], second["id"]]
    why = ok(await world.user.get(f"/api/v1/job-queues/{third['jobId']}/explanation"))
    assert why["waiting"][0]["forecast"] == f"starts when command {first['id']} ends"
    update = {"updates": [{"jobId": second["id"], "priority": 3}]}
    ok(await world.user.post("/api/v1/job-queues", json=update))
    assert [job["entityId"] for job in await queue(world)][1] == second["id"]
    assert "only its priority" in await refusal(
        world, "/api/v1/job-queues", updates=[{"jobId": second["id"], "weight": 2}]
    )


async def test_no_slots_no_waiting(world: World) -> None:
    await world.register(slots=1)
    await launch(world)
    await started(world)
    await launch(world, ["free"], resources={"slots": 0})
    process = await world.launched()
    assert (process.spec["entrypoint"], process.spec["slot_ids"]) == ("free", [])


async def test_others_may_look_but_not_touch(world: World) -> None:
    secret = {"environment": {"environment_variables": ["TOKEN=abc"]}}
    command = (await launch(world, **secret))["command"]
    one = f"{COMMANDS}/{command['id']}"
    other = await another_user(world, "mallory")
    found = ok(await other.get(one))
    assert found["config"]["environment"]["environment_variables"]["cpu"] == ["TOKEN=********"]
    assert ok(await world.user.get(one))["config"]["environment"]["environment_variables"][
        "cpu"
    ] == ["TOKEN=abc"]
    for path, body in ((f"{one}/kill", {}), (f"{one}/set_priority", {"priority": 1})):
        assert (await other.post(path, json=body)).status_code == 403
    assert (await other.post(f"/api/v1/tasks/{command['id']}/kill", json={})).status_code == 403
    names = {"users": ["mallory"]}
    assert ok(await world.user.get(COMMANDS, params=names))["commands"] == []
    assert (await world.user.get(f"/api/v1/shells/{command['id']}")).status_code == 404

    # A process may kill tasks that its own task launched, but no other task of its owner.
    await world.register(slots=1)
    process = await started(world)
    answer = await process.client.post(COMMANDS, json={"config": {"entrypoint": ["child"]}})
    child = ok(answer)["command"]
    other_one = (await launch(world))["command"]
    assert (await process.client.post(f"{COMMANDS}/{other_one['id']}/kill")).status_code == 403
    killed = ok(await process.client.post(f"{COMMANDS}/{child['id']}/kill"))["command"]
    assert killed["exitStatus"] == "killed by the user"


async def test_others_see_neither_the_program_nor_the_files(world: World) -> None:
    """People type secrets there, which look like anything."""
    others = {
        "mallory": await another_user(world, "mallory"),
        "process": await process_of_another_task(world),
    }
    secret = ["sh", "-c", "tell x4711 to it"]
    for kind in ("command", "notebook", "shell", "generic"):
        if kind == "generic":
            config = json.dumps({"entrypoint": secret})
            task_id = await generic(world, config=config, contextDirectory=CONTEXT)
        else:
            own = {"entrypoint": secret} if kind == "command" else {}
            given = {"config": {**own, "resources": {"slots": 0}}, "files": CONTEXT}
            task_id = ok(await world.user.post(f"/api/v1/{kind}s", json=given))[kind]["id"]
        whole = json.loads(ok(await world.user.get(f"/api/v1/tasks/{task_id}"))["task"]["config"])
        context = f"/api/v1/tasks/{task_id}/context_directory"
        assert ok(await world.user.get(context))["b64Tgz"]
        for client in others.values():
            hidden = {**whole, "entrypoint": ["********"]}
            seen = [ok(await client.get(f"/api/v1/tasks/{task_id}"))["task"]["config"]]
            seen.append(ok(await client.get(f"/api/v1/tasks/{task_id}/config"))["config"])
            if kind != "generic":
                seen.append(
                    json.dumps(ok(await client.get(f"/api/v1/{kind}s/{task_id}"))["config"])
                )
                assert "x4711" not in (await client.get(f"/api/v1/{kind}s")).text
            assert [json.loads(text) for text in seen] == [hidden] * len(seen)
            refused = await client.get(context)
            assert refused.status_code == 403 and "may read the files of task" in refused.text
            if kind == "generic":
                for body in ({}, {"config": "entrypoint: [cat, a.txt]"}):
                    body = {"forkedFrom": task_id, **body}
                    refused = await client.post("/api/v1/generic-tasks", json=body)
                    assert refused.status_code == 403, refused.text
                    assert "may fork task" in refused.text and "others do not see" in refused.text


async def process_of_another_task(world: World) -> httpx.AsyncClient:
    """With the token of a task of the user's."""
    await world.register(slots=1)
    await launch(world)
    return (await started(world)).client


async def test_unused_tasks_end(world: World) -> None:
    await world.register(slots=1)
    task_id = (await launch(world))["command"]["id"]
    process = await started(world)
    reconciler = Reconciler(world.app.state.db, None, 30.0)
    reconciler._began -= 60
    await world.rows(f"UPDATE tasks SET idle_timeout_s = 100 WHERE id = '{task_id}' RETURNING 1")
    async with changing(world.app.state.db) as change:
        await idle.note_use(change.conn, task_id, in_use=False)
    age = "UPDATE tasks SET idle_since = now() - interval '{} s' RETURNING 1"
    await world.rows(age.format(90))
    await reconciler.run_pass()
    await reconciler.run_pass()
    log = (await world.user.get(f"/api/v1/tasks/{task_id}/logs")).text
    assert len(log.splitlines()) == 1 and "this task was not used for" in log
    await world.rows(age.format(101))
    await reconciler.run_pass()
    assert (await world.work())["kill"] == [process.allocation_id]
    ok(await process.exited(exit_code=None, signal=9))
    ended = await shown(world, task_id)
    assert (ended["taskState"], ended["exitStatus"]) == (
        "STATE_COMPLETED",
        "nobody used it for 100 s (idle_timeout)",
    )


async def generic(world: World, client: httpx.AsyncClient | None = None, **body: Any) -> str:
    answer = await (client or world.user).post("/api/v1/generic-tasks", json=body)
    return str(ok(answer)["taskId"])


async def state_of(world: World, task_id: str) -> str:
    return str(ok(await world.user.get(f"/api/v1/tasks/{task_id}"))["task"]["taskState"])


async def test_generic_tasks_pause_fork_and_stand_under_each_other(world: World) -> None:
    await world.register(slots=2)
    top = await generic(world, config="entrypoint: [top]\n", contextDirectory=CONTEXT)
    first = await started(world)
    below = await generic(world, config="entrypoint: [below]", parentId=top, inheritContext=True)
    second = await started(world)
    assert second.spec["model_def_hash"] == first.spec["model_def_hash"]

    ok(await world.user.post(f"/api/v1/tasks/{top}/pause"))
    assert sorted((await world.work())["kill"]) == sorted(
        [first.allocation_id, second.allocation_id]
    )
    # If it is unpaused before its process has ended, it goes on automatically after that end.
    ok(await first.exited(exit_code=None, signal=9))
    assert await state_of(world, top) == "GENERIC_TASK_STATE_PAUSED"
    ok(await world.user.post(f"/api/v1/tasks/{top}/unpause"))
    assert (await started(world)).spec["run_id"] == 2
    ok(await second.exited(exit_code=None, signal=9))
    again = await started(world)
    assert (again.spec["task_id"], again.spec["run_id"]) == (below, 2)
    assert await state_of(world, below) == "GENERIC_TASK_STATE_ACTIVE"

    forked = await generic(world, forkedFrom=top)
    task = ok(await world.user.get(f"/api/v1/tasks/{forked}"))["task"]
    assert (task["forkedFrom"], task["parentId"]) == (top, None)
    assert (
        ok(await world.user.get(f"/api/v1/tasks/{forked}/config"))["config"]
        == (ok(await world.user.get(f"/api/v1/tasks/{top}/config"))["config"])
    )
    ok(await world.user.post(f"/api/v1/tasks/{below}/kill", json={"killFromRoot": True}))
    assert await state_of(world, top) == "GENERIC_TASK_STATE_STOPPING_CANCELED"
    assert await state_of(world, forked) == "GENERIC_TASK_STATE_ACTIVE"

    stubborn = await generic(world, config="entrypoint: [x]", noPause=True)
    said = await refusal(world, f"/api/v1/tasks/{stubborn}/pause")
    assert "created with noPause" in said


async def test_a_generic_tasks_configuration_is_shown_as_it_was_given(world: World) -> None:
    text = "entrypoint: [env | grep X]\nresources: {slots: 0}\n"
    given = {"entrypoint": ["env | grep X"], "resources": {"slots": 0}}
    first = await generic(world, config=text, noPause=True)
    for task_id in (first, await generic(world, forkedFrom=first)):
        found = ok(await world.user.get(f"/api/v1/tasks/{task_id}/config"))["config"]
        assert json.loads(found) == given
    listed = ok(await world.user.get(f"/api/v1/tasks/{first}"))["task"]
    assert (json.loads(listed["config"]), listed["noPause"]) == (given, True)
    await world.rows("UPDATE tasks SET data = NULL RETURNING id")  # of an earlier release
    found = ok(await world.user.get(f"/api/v1/tasks/{first}/config"))["config"]
    assert json.loads(found)["resources"]["weight"] == 1


def test_every_launched_kind_has_a_flow_and_a_deployment() -> None:
    from determined.common.wire.prefect import TASK_FLOWS
    from determined_service.lifecycle.kinds.table import launched_kinds

    assert {kind.noun for kind in launched_kinds().values()} == set(TASK_FLOWS)
    assert launched_kinds().keys() <= KINDS.keys()


async def test_ports_that_the_user_names(world: World) -> None:
    """A task of any kind serves them, and is ready without them."""
    await world.register(slots=1)
    environment = {"proxy_ports": [{"proxy_port": 8888, "proxy_tcp": True}]}
    resources = {"slots": 0}
    for kind, own in (("command", []), ("notebook", ["notebook"])):
        config = {"environment": environment, "resources": resources}
        given = {"config": {**config, **({"entrypoint": ["true"]} if kind == "command" else {})}}
        task = ok(await world.user.post(f"/api/v1/{kind}s", json=given))[kind]
        process = await world.launched()
        ports = process.spec["ports"]
        assert [port["name"] for port in ports] == [*own, "8888"]
        # The task's address stays that of its kind.
        assert [port["name"] for port in ports if port["default"]] == [*own, "8888"][:1]
        ports = [{**port, "port": port["port"] or 2600} for port in ports]
        ok(await process.started(ports=ports, address="127.0.0.1"))
        for name in own:
            where = f"/internal/v1/allocations/{process.allocation_id}/port"
            ok(await world.agent.post(where, json={"name": name, "ready": True}))
        found = ok(await world.user.get(f"/api/v1/{kind}s/{task['id']}"))[kind]
        assert found["state"] == "STATE_RUNNING"
        ok(await process.exited())


async def test_missing_programs_are_named_at_the_launch(world: World) -> None:
    lacks = {"jupyterlab": "pip install x[notebook]", "sshd": "install openssh-server"}
    await world.register(slots=1, lacks=lacks)
    launched = ok(await world.user.post("/api/v1/notebooks", json={}))
    assert launched["remarks"] == [
        "JupyterLab was not installed on agent a1 at its start, and resource pool 'default' has no other "
        "agent: the task ends there at once. On that machine: pip install x[notebook]"
    ]
    command = {"config": {"entrypoint": ["true"]}}
    assert ok(await world.user.post("/api/v1/commands", json=command))["remarks"] == []
    (agent,) = ok(await world.user.get("/api/v1/cluster/health-report"))["agents"]
    assert agent["lacks"] == lacks
    # Some have it.
    await world.register(1, "a2")
    shell = ok(await world.user.post("/api/v1/shells", json={}))
    assert shell["remarks"] == [
        "sshd was not installed on agent a1 at its start: terminals get in there; programs (det shell open "
        "ID -- …), scp, rsync and VS Code do not. On that machine: install openssh-server"
    ]
    # After a restart it has the packages that were installed meanwhile.
    await world.register(slots=1)
    assert ok(await world.user.post("/api/v1/notebooks", json={}))["remarks"] == []
