"""Access tokens: made, limited, used, and ended."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI
from typer.testing import CliRunner, Result

from determined.cli.root import app
from determined.common.cluster_config import ClusterConfig, Security, Tokens
from determined_registry.database.tables import user_sessions
from determined_service.lifecycle import configuration
from tests.integration.conftest import AGENT_TOKEN, client_of
from tests.integration.quotas import put_quotas
from tests.integration.service_api.world import World
from tests.waiting import until_async

API = "/api/v1/tokens"
ME = "/api/v1/me"
PASSWORD = "a-Long-one-1"


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["error"])


async def log_in(service_app: FastAPI, name: str, password: str = "") -> httpx.AsyncClient:
    body = {"username": name, "password": password}
    answer = ok(await client_of(service_app, None).post("/api/v1/auth/login", json=body))
    return client_of(service_app, answer["token"])


@pytest.fixture
async def admin(service_app: FastAPI) -> httpx.AsyncClient:
    return await log_in(service_app, "admin")


@pytest.fixture
async def kim(admin: httpx.AsyncClient, service_app: FastAPI) -> httpx.AsyncClient:
    """A user who is no administrator."""
    body = {"user": {"username": "kim", "active": True}, "password": PASSWORD}
    ok(await admin.post("/api/v1/users", json=body))
    return await log_in(service_app, "kim", PASSWORD)


async def own_id(client: httpx.AsyncClient) -> int:
    return int(ok(await client.get(ME))["user"]["id"])


async def made(client: httpx.AsyncClient, **given: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ok(
        await client.post(API, json={"userId": await own_id(client), **given})
    )
    return answer


async def listed(client: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ok(await client.get(API, params=params))["tokenInfo"]
    return found


async def unknown(token: httpx.AsyncClient) -> httpx.Response:
    """The refusal of a token that is good no more, as soon as the service has heard of it."""
    answers: list[httpx.Response] = []

    async def is_refused() -> bool:
        answers.append(await token.get(ME))
        return answers[-1].status_code == 401

    await until_async("the token is refused", is_refused)
    return answers[-1]


async def put_limits(service_app: FastAPI, **days: int) -> None:
    """Puts limits of tokens' lives into force, as another process of the service would."""
    state = service_app.state
    wanted = ClusterConfig(security=Security(token=Tokens(**days)))
    await configuration.put(state.db, wanted, state.settings)

    async def are_in_force() -> bool:
        return bool(state.settings.cluster == wanted)

    await until_async("the limits are in force", are_in_force)


async def test_a_token_is_its_user(
    kim: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    answer = await made(kim, description="nightly")
    token = client_of(service_app, answer["token"])
    before = await listed(kim)
    assert [one["lastUsedAt"] for one in before] == [None]
    assert ok(await token.get(ME))["user"]["username"] == "kim"
    (one,) = await listed(kim)
    assert one["id"] == answer["tokenId"]
    assert (one["description"], one["username"], one["revoked"]) == ("nightly", "kim", False)
    assert one["tokenType"] == "TOKEN_TYPE_ACCESS_TOKEN"
    assert one["lastUsedAt"] is not None
    ok(await token.put("/api/v1/templates/made-by-it", json={"config": {}}))
    # Nobody can read it again.
    async with service_app.state.db.tx() as conn:
        rows = (await conn.execute(sa.select(user_sessions))).all()
    assert answer["token"] not in str(rows) + str(await listed(kim))


async def test_lives_are_limited(kim: httpx.AsyncClient, service_app: FastAPI) -> None:
    user_id = await own_id(kim)
    for lifespan, why in (
        (
            "721h",
            "lifespan: 30.0417 days found; tokens of this cluster are good for 30 days at most",
        ),
        ("-1", "lifespan: for ever found"),
        ("soon", "'soon' found; it must be a duration such as '720h'"),
        ("0h", "must be good for some time"),
        ("9" * 300 + "h", "it must be a duration"),
    ):
        body = {"userId": user_id, "lifespan": lifespan}
        assert why in refused(await kim.post(API, json=body), 400), lifespan
    await made(kim, lifespan="720h")
    await put_limits(service_app, max_lifespan_days=-1, default_lifespan_days=-1)
    await made(kim)
    ends = [one["expiry"] for one in await listed(kim)]
    assert ends[0] < "9999" <= ends[1]


@pytest.mark.parametrize(
    ("days", "why"),
    [
        ({"max_lifespan_days": 0}, "max_lifespan_days: 0 found"),
        ({"max_lifespan_days": 10}, r"default_lifespan_days \(30\) is more than max_lifespan_days"),
        ({"max_lifespan_days": 10, "default_lifespan_days": -1}, "is more than"),
    ],
)
def test_limits_that_cannot_be(days: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Tokens(**days)


async def test_a_token_that_only_reads(
    kim: httpx.AsyncClient, service_app: FastAPI, admin: httpx.AsyncClient
) -> None:
    answer = await made(kim, readOnly=True)
    reader = client_of(service_app, answer["token"])
    assert ok(await reader.get("/api/v1/experiments"))["experiments"] == []
    ok(await reader.post("/api/v1/auth/logout"))
    config = "name: x\nentrypoint: 'true'\nsearcher: {name: single, metric: loss, max_length: 1}\n"
    changes = {
        "/api/v1/experiments": {"config": config},
        "/api/v1/templates/x": {"config": {}},
        "/api/v1/models": {"name": "m"},
        API: {"userId": await own_id(kim)},
    }
    for path, body in changes.items():
        asked = await reader.post(path, json=body)
        assert asked.status_code == 403, (path, asked.text)
        assert "good for reading alone" in asked.text, path
    # An administrator's token has no more rights for that.
    powerless = client_of(service_app, (await made(admin, readOnly=True))["token"])
    body = {"user": {"username": "new", "active": True}, "password": PASSWORD}
    assert "log in as admin" in refused(await powerless.post("/api/v1/users", json=body), 403)
    assert len(await listed(powerless)) == 2


async def test_it_ends_when_it_is_revoked(kim: httpx.AsyncClient, service_app: FastAPI) -> None:
    answer = await made(kim)
    token = client_of(service_app, answer["token"])
    one = f"{API}/{answer['tokenId']}"
    ok(await token.get(ME))
    changed = ok(await kim.patch(one, json={"tokenId": 1, "description": "renamed"}))["tokenInfo"]
    assert (changed["description"], changed["revoked"]) == ("renamed", False)
    assert ok(await kim.patch(one, json={"setRevoked": True}))["tokenInfo"]["revoked"]
    assert "was revoked" in refused(await unknown(token), 401)
    assert await listed(kim) == []
    assert [row["revoked"] for row in await listed(kim, showInactive=True)] == [True]
    assert [row["id"] for row in await listed(kim, tokenIds=[answer["tokenId"]])] == [
        answer["tokenId"]
    ]
    assert "stays as it is" in refused(await kim.patch(one, json={"setRevoked": False}), 409)
    assert "does not exist" in refused(await kim.patch(f"{API}/999999", json={}), 404)


async def test_it_outlives_logins_and_not_its_user(
    kim: httpx.AsyncClient, admin: httpx.AsyncClient, service_app: FastAPI
) -> None:
    await put_quotas(service_app, sessions=1)
    answer = await made(kim)
    token = client_of(service_app, answer["token"])
    user_id = await own_id(kim)
    ok(await token.post("/api/v1/auth/logout"))
    body = {"password": "another-Long-1", "currentPassword": PASSWORD}
    ok(await kim.post(f"/api/v1/users/{user_id}/password", json=body))
    for _ in range(2):
        await log_in(service_app, "kim", "another-Long-1")
    ok(await token.get(ME))
    ok(await admin.patch(f"/api/v1/users/{user_id}", json={"active": False}))
    await unknown(token)
    ok(await admin.patch(f"/api/v1/users/{user_id}", json={"active": True}))
    ok(await token.get(ME))
    # It is no fresh login, by which a user sets a new password without the old one.
    change = await token.post(
        f"/api/v1/users/{user_id}/password", json={"password": "x-Long-one-2"}
    )
    assert "old password is missing" in refused(change, 403)


async def test_who_makes_and_sees_tokens(
    kim: httpx.AsyncClient, admin: httpx.AsyncClient, service_app: FastAPI, world: World
) -> None:
    kim_id, admin_id = await own_id(kim), await own_id(admin)
    own = await made(admin)
    for_kim = ok(await admin.post(API, json={"userId": kim_id}))
    assert "only an administrator may make access tokens of user" in refused(
        await kim.post(API, json={"userId": admin_id}), 403
    )
    assert "does not exist" in refused(await admin.post(API, json={"userId": 999_999}), 404)
    token = client_of(service_app, for_kim["token"])
    assert "makes no other one" in refused(await token.post(API, json={"userId": kim_id}), 403)
    leg = await world.leg()
    for process in (leg.client, client_of(service_app, AGENT_TOKEN)):
        why = "only a user who is logged in may"
        assert why in refused(await process.post(API, json={"userId": kim_id}), 403)
        assert why in refused(await process.get(API), 403)
    assert [one["id"] for one in await listed(kim)] == [for_kim["tokenId"]]
    assert await listed(kim, tokenIds=[own["tokenId"]]) == []
    assert {one["username"] for one in await listed(admin)} == {"admin", "kim"}
    assert [one["id"] for one in await listed(admin, username="kim")] == [for_kim["tokenId"]]
    assert "only admin or" in refused(await kim.get(API, params={"username": "admin"}), 403)
    assert "does not exist" in refused(await kim.get(API, params={"username": "nobody"}), 404)
    change = await kim.patch(f"{API}/{own['tokenId']}", json={"setRevoked": True})
    assert "only its owner admin or an administrator" in refused(change, 403)
    # A login is no access token, though the same table holds both.
    async with service_app.state.db.tx() as conn:
        session = await conn.scalar(
            sa.select(user_sessions.c.id).where(
                user_sessions.c.user_id == kim_id, ~user_sessions.c.is_access_token
            )
        )
    assert "does not exist" in refused(await kim.patch(f"{API}/{session}", json={}), 404)


async def test_sixteen_at_once_make_no_more_than_the_quota(
    kim: httpx.AsyncClient, service_app: FastAPI
) -> None:
    await put_quotas(service_app, access_tokens=5)
    user_id = await own_id(kim)
    answers = await asyncio.gather(*(kim.post(API, json={"userId": user_id}) for _ in range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [403] * 11
    assert any("(quotas.access_tokens): revoke some" in answer.text for answer in answers)
    for one in await listed(kim):
        ok(await kim.patch(f"{API}/{one['id']}", json={"setRevoked": True}))
    for _ in range(5):
        await made(kim)
    # Of those that have ended, as many stay.
    assert len(await listed(kim, showInactive=True)) == 10


async def test_of_sixteen_changes_none_is_lost(kim: httpx.AsyncClient) -> None:
    answer = await made(kim)
    one = f"{API}/{answer['tokenId']}"
    bodies = [{"description": f"d{n}"} for n in range(15)] + [{"setRevoked": True}]
    answers = await asyncio.gather(*(kim.patch(one, json=body) for body in bodies))
    assert answers[-1].status_code == 200
    (row,) = await listed(kim, showInactive=True)
    assert row["revoked"]
    done = [body for body, given in zip(bodies, answers, strict=True) if given.status_code == 200]
    assert row["description"] in {body.get("description") for body in done} | {""}


async def test_det(service_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path))
    monkeypatch.setenv("DET_MASTER", service_url)
    monkeypatch.delenv("DET_USER_TOKEN", raising=False)

    async def det(*words: str, code: int = 0) -> Result:
        result = await asyncio.to_thread(CliRunner().invoke, app, list(words))
        assert result.exit_code == code, result.output
        return result

    monkeypatch.setenv("DET_USER", "determined")
    monkeypatch.setenv("DET_PASS", "")
    out = (await det("token", "create", "-e", "1", "-d", "ci")).stdout
    number, secret = (line.split(": ")[1] for line in out.splitlines())
    assert f"\n{number} " in (await det("tkn", "list")).stdout.replace("\n", "\n")
    assert "ci" in (await det("token", "describe", number, "--yaml")).stdout
    await det("token", "edit", number, "-d", "other")
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_PASS")
    said = await det("token", "login", secret)
    assert "as determined, by this access token" in said.output
    assert (await det("user", "whoami")).stdout.strip() == "determined"
    assert "other" in (await det("token", "list")).stdout
    await det("token", "revoke", number)
    await det("user", "whoami", code=1)
