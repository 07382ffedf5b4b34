"""The allowed names of users, and the linked accounts on agents."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from determined.common.wire import limits
from tests.waiting import until_async


async def my_id(client: httpx.AsyncClient) -> int:
    return int((await client.get("/api/v1/me")).json()["user"]["id"])


async def test_no_name_can_pass_for_another(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    made = {"user": {"username": "ada", "displayName": "Ada King"}, "password": "correct horse"}
    assert (await agent.post("/api/v1/users", json=made)).status_code == 200
    path = f"/api/v1/users/{await my_id(user)}"
    refused = {"Admin": 400, "the administrator": 400, "ADA  KING": 409, "ada": 409}
    for name, status in refused.items():
        answer = await user.patch(path, json={"displayName": name})
        assert answer.status_code == status, name
        assert "choose another one" in answer.json()["message"]
    for name in ("Determined", "Grace Hopper", "Grace Hopper", ""):
        answer = await user.patch(path, json={"displayName": name})
        assert answer.json()["user"]["displayName"] == name
    # An administrator decides.
    answer = await agent.patch(path, json={"displayName": "Admin of the night"})
    assert answer.json()["user"]["displayName"] == "Admin of the night"


@pytest.mark.parametrize("field", [{"admin": True}, {"username": "admin2"}, {"active": True}])
async def test_rights_are_the_administrators_to_give(
    user: httpx.AsyncClient, field: dict[str, Any]
) -> None:
    answer = await user.patch(f"/api/v1/users/{await my_id(user)}", json=field)
    assert answer.status_code == 403
    assert not (await user.get("/api/v1/me")).json()["user"]["admin"]


LINKED = {"agentUid": 1001, "agentGid": 100, "agentUser": "ada", "agentGroup": "users"}


async def test_the_account_on_agents_is_kept(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    path = f"/api/v1/users/{await my_id(user)}"
    assert (await user.get(path)).json()["user"]["agentUserGroup"] is None
    refused = await user.patch(path, json={"agentUserGroup": LINKED})
    assert refused.status_code == 403
    changed = await agent.patch(path, json={"agentUserGroup": LINKED})
    assert changed.json()["user"]["agentUserGroup"] == LINKED
    await agent.patch(path, json={"displayName": "Det"})
    assert (await user.get("/api/v1/me")).json()["user"]["agentUserGroup"] == LINKED
    for bad in ({"agentUid": 1}, LINKED | {"agentUid": -1}, LINKED | {"agentUser": "a b"}):
        answer = await agent.patch(path, json={"agentUserGroup": bad})
        assert answer.status_code == 400, bad
    nobody = dict.fromkeys(LINKED)
    changed = await agent.patch(path, json={"agentUserGroup": nobody})
    assert changed.json()["user"]["agentUserGroup"] is None
    new = {"user": {"username": "ada", "agentUserGroup": LINKED}, "password": "correct horse"}
    made = await agent.post("/api/v1/users", json=new)
    assert made.json()["user"]["agentUserGroup"] == LINKED


async def test_a_deactivated_user_is_told_so(
    anonymous: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    new = {"user": {"username": "ada"}, "password": "correct horse"}
    made = (await agent.post("/api/v1/users", json=new)).json()["user"]
    await agent.patch(f"/api/v1/users/{made['id']}", json={"active": False})
    given = {"username": "ada", "password": "correct horse"}
    answer = await anonymous.post("/api/v1/auth/login", json=given)
    assert answer.status_code == 403
    assert "user is not active" in answer.json()["message"]
    # Only callers with the right password learn that.
    answer = await anonymous.post("/api/v1/auth/login", json=given | {"password": "wrong"})
    assert "not active" not in answer.json()["message"]


async def test_the_objects_of_a_deactivated_user(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    """Shells and notebooks end; other tasks go on, the answer names them, and they cannot begin anything."""
    wanted = {"config": {"resources": {"slots": 0}, "entrypoint": ["sleep", "60"]}}
    shell = (await user.post("/api/v1/shells", json={"config": {"resources": {"slots": 0}}})).json()
    command = (await user.post("/api/v1/commands", json=wanted)).json()
    config = {"name": "a", "searcher": {"name": "single", "metric": "loss"}}
    config |= {"checkpoint_storage": {"type": "shared_fs", "host_path": "/c"}}
    body = {"config": json.dumps(config), "unmanaged": True}
    made = (await user.post("/api/v1/experiments", json=body)).json()
    me = await my_id(user)
    answer = (await agent.patch(f"/api/v1/users/{me}", json={"active": False})).json()
    assert answer["user"]["active"] is False
    assert answer["stillRunning"] == {
        "experiments": [made["experiment"]["id"]],
        "tasks": [command["command"]["id"]],
    }

    async def status() -> int:
        return (await user.get("/api/v1/me")).status_code

    # The announcement of the change is on its way when the request is answered.
    await until_async("the token is refused", status, equals=401)
    left = (await agent.get(f"/api/v1/shells/{shell['shell']['id']}")).json()["shell"]
    assert left["state"] in ("STATE_TERMINATED", "STATE_TERMINATING")
    again = await agent.patch(f"/api/v1/users/{me}", json={"active": True})
    assert "stillRunning" not in again.json()


MISSING = (
    "/api/v1/experiments/4711",
    "/api/v1/experiments/4711/trials",
    "/api/v1/experiments/4711/checkpoints",
    "/api/v1/trials/4711",
    "/api/v1/trials/4711/logs",
    "/api/v1/checkpoints/3f0d8a52-7c0f-4c5c-9a57-0d1f0e9a1b11",
    "/api/v1/tasks/4711",
    "/api/v1/agents/4711",
    "/api/v1/users/4711",
    "/api/v1/users/nobody/by-username",
    "/api/v1/no-such-address",
)


@pytest.mark.parametrize("path", MISSING)
async def test_missing_objects_are_not_found(user: httpx.AsyncClient, path: str) -> None:
    answer = await user.get(path)
    assert answer.status_code == 404
    assert "not found" in answer.json()["message"]
    assert "not found" in answer.json()["error"]["error"]


SETTINGS = "/api/v1/users/setting"


async def test_settings_are_ones_own(user: httpx.AsyncClient, agent: httpx.AsyncClient) -> None:
    def one(key: str, value: str, path: str = "table") -> dict[str, str]:
        return {"key": key, "storagePath": path, "value": value}

    for given in (
        [one("columns", "3"), one("sort", "id")],
        [one("sort", "name"), one("sort", "x", "")],
    ):
        answer = await user.post(SETTINGS, json={"settings": given})
        assert answer.status_code == 200, answer.text
    kept = [one("sort", "x", ""), one("columns", "3"), one("sort", "name")]
    assert (await user.get(SETTINGS)).json()["settings"] == kept
    made = {"user": {"username": "ada"}, "password": "correct horse"}
    await agent.post("/api/v1/users", json=made)
    login = {"username": "ada", "password": "correct horse"}
    token = (await user.post("/api/v1/auth/login", json=login)).json()["token"]
    ada = {"Authorization": f"Bearer {token}"}
    assert (await user.get(SETTINGS, headers=ada)).json()["settings"] == []
    assert (await user.post(f"{SETTINGS}/reset", headers=ada)).status_code == 200
    assert (await user.get(SETTINGS)).json()["settings"] == kept
    assert (await user.post(f"{SETTINGS}/reset")).status_code == 200
    assert (await user.get(SETTINGS)).json()["settings"] == []


async def test_settings_are_bounded(user: httpx.AsyncClient) -> None:
    async def store(start: int, count: int) -> httpx.Response:
        given = [{"key": str(n), "value": "x"} for n in range(start, start + count)]
        return await user.post(SETTINGS, json={"settings": given})

    assert (await store(0, limits.USER_SETTINGS + 1)).status_code == 400
    answers = await asyncio.gather(*(store(n * 300, 300) for n in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 400]
    assert len((await user.get(SETTINGS)).json()["settings"]) == 900
    for bad in ({"key": ""}, {"key": "a\0"}, {"key": "a", "value": "x" * (limits.TEXT_CHARS + 1)}):
        assert (await user.post(SETTINGS, json={"settings": [bad]})).status_code == 400


async def test_a_remote_user_has_no_password(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    login = {"username": "ada", "password": ""}
    refused = {"user": {"username": "ada", "remote": True}, "password": "correct horse"}
    assert (await agent.post("/api/v1/users", json=refused)).status_code == 400
    made = await agent.post("/api/v1/users", json={"user": {"username": "ada", "remote": True}})
    assert made.json()["user"]["remote"] is True
    assert (await user.post("/api/v1/auth/login", json=login)).status_code == 401
    path = f"/api/v1/users/{made.json()['user']['id']}"
    await agent.patch(path, json={"remote": False, "password": "correct horse"})
    login["password"] = "correct horse"
    entered = await user.post("/api/v1/auth/login", json=login)
    bearer = {"Authorization": f"Bearer {entered.json()['token']}"}
    assert (await user.get("/api/v1/me", headers=bearer)).status_code == 200
    # Its sessions end, and its password counts no more.
    await agent.patch(path, json={"remote": True})

    async def is_out() -> bool:
        return (await user.get("/api/v1/me", headers=bearer)).status_code == 401

    await until_async("the session has ended", is_out)
    answer = await user.post("/api/v1/auth/login", json=login)
    assert answer.status_code == 403
    assert "det user edit ada --remote false" in answer.json()["message"]


async def test_many_users_are_deactivated_at_once(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    ids = []
    for name in ("ada", "bob"):
        made = await agent.post("/api/v1/users", json={"user": {"username": name}})
        ids.append(made.json()["user"]["id"])
    body = {"userIds": [*ids, 999_999], "activate": False}
    assert (await user.patch("/api/v1/users", json=body)).status_code == 403
    for active in (False, True):
        answer = await agent.patch("/api/v1/users", json=body | {"activate": active})
        assert answer.json()["results"] == [
            *({"id": one, "error": ""} for one in ids),
            {"id": 999_999, "error": "not found: user 999999 does not exist"},
        ]
        for one in ids:
            shown = (await user.get(f"/api/v1/users/{one}")).json()["user"]
            assert shown["active"] is active
