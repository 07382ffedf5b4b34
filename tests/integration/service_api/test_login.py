"""Logging in, the three kinds of token, what each may do."""

from __future__ import annotations

import hashlib

import httpx
import pytest
import sqlalchemy as sa

from determined_registry.database.tables import user_sessions, users
from determined_service.access import authenticator
from determined_service.base import passwords
from tests.integration.service_api.world import World, report
from tests.scrypt_passwords import scrypt_of
from tests.waiting import until_async


async def test_login_with_blank_password(anonymous: httpx.AsyncClient) -> None:
    answer = await anonymous.post(
        "/api/v1/auth/login", json={"username": "determined", "password": "", "isHashed": True}
    )
    found = answer.json()
    assert found["user"]["username"] == "determined"
    assert found["user"]["admin"] is False
    me = await anonymous.get("/api/v1/me", headers={"Authorization": f"Bearer {found['token']}"})
    assert me.json()["user"]["id"] == found["user"]["id"]


@pytest.mark.parametrize("user", ["determined", "nobody"])
async def test_wrong_password_and_unknown_user_look_the_same(
    anonymous: httpx.AsyncClient, user: str
) -> None:
    answer = await anonymous.post(
        "/api/v1/auth/login", json={"username": user, "password": "wrong"}
    )
    assert answer.status_code == 401
    assert answer.json()["error"]["error"] == "wrong user name or password"


async def test_hashed_and_typed_passwords_are_the_same(
    anonymous: httpx.AsyncClient, world: World
) -> None:
    async with world.db.tx() as conn:
        kept = passwords.store(passwords.as_sent("Secret123"))
        await conn.execute(
            sa.update(users).where(users.c.username == "admin").values(password_hash=kept)
        )
    # What every client of Determined sends, written out.
    sent = hashlib.sha512(b"GubPEmmotfiK9TMD6ZdwSecret123").hexdigest()
    for login in (
        {"username": "admin", "password": sent, "isHashed": True},
        {"username": "admin", "password": "Secret123"},
    ):
        answer = await anonymous.post("/api/v1/auth/login", json=login)
        assert answer.status_code == 200, answer.text
    wrong = {"username": "admin", "password": "Secret123", "isHashed": True}
    assert (await anonymous.post("/api/v1/auth/login", json=wrong)).status_code == 401


async def test_a_scrypt_row_logs_in_and_is_hashed_anew(
    anonymous: httpx.AsyncClient, world: World
) -> None:
    old = scrypt_of(passwords.as_sent("Secret123"))
    is_admin = users.c.username == "admin"
    async with world.db.tx() as conn:
        await conn.execute(sa.update(users).where(is_admin).values(password_hash=old))

    async def login(password: str) -> int:
        given = {"username": "admin", "password": password}
        return (await anonymous.post("/api/v1/auth/login", json=given)).status_code

    async def kept() -> str:
        async with world.db.tx() as conn:
            return str(
                (await conn.execute(sa.select(users.c.password_hash).where(is_admin))).scalar()
            )

    assert await login("wrong") == 401
    assert await kept() == old
    assert await login("Secret123") == 200
    renewed = await kept()
    assert renewed.startswith("$argon2id$")
    assert await login("Secret123") == 200
    assert await kept() == renewed
    assert await login("wrong") == 401


async def test_no_token_and_a_made_up_one(anonymous: httpx.AsyncClient) -> None:
    assert (await anonymous.get("/api/v1/me")).status_code == 401
    headers = {"Authorization": "Bearer made-up"}
    answer = await anonymous.get("/api/v1/me", headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["reason"] == "Unauthenticated"


async def test_logout_ends_the_session_at_once(user: httpx.AsyncClient) -> None:
    assert (await user.get("/api/v1/me")).status_code == 200
    assert (await user.post("/api/v1/auth/logout")).status_code == 200
    assert (await user.get("/api/v1/me")).status_code == 401


async def test_an_expired_session_is_none(user: httpx.AsyncClient, world: World) -> None:
    async with world.db.tx() as conn:
        await conn.execute(sa.update(user_sessions).values(expires_at=sa.func.now()))
    world.app.state.auth._known.clear()
    assert (await user.get("/api/v1/me")).status_code == 401


async def test_agent_token_acts_as_determined_with_admin(agent: httpx.AsyncClient) -> None:
    found = (await agent.get("/api/v1/me")).json()["user"]
    assert found["username"] == "determined"
    created = await agent.post("/api/v1/users", json={"user": {"username": "ada"}})
    assert created.status_code == 200


async def test_users_are_no_agents(user: httpx.AsyncClient) -> None:
    answer = await user.post("/internal/v1/logs", json={})
    assert answer.status_code == 401


async def test_allocation_token_is_its_owner_while_it_lives(world: World) -> None:
    leg = await world.leg()
    found = (await leg.client.get("/api/v1/me")).json()["user"]
    assert found["username"] == "determined"


@pytest.fixture
def remembered_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an announcement makes the service look at a token again."""
    monkeypatch.setattr(authenticator, "REMEMBER_S", 3600.0)


@pytest.mark.usefixtures("remembered_for_long")
async def test_allocation_token_under_the_name_that_harnesses_use(
    world: World, anonymous: httpx.AsyncClient
) -> None:
    leg = await world.leg()
    token = leg.client.headers["Authorization"]
    headers = {"Grpc-Metadata-x-allocation-token": token}
    assert (await anonymous.get("/api/v1/me", headers=headers)).status_code == 200
    await world.end(leg)

    async def status() -> int:
        return (await anonymous.get("/api/v1/me", headers=headers)).status_code

    await until_async("the announcement of its end", status, equals=409)


@pytest.mark.usefixtures("remembered_for_long")
async def test_ended_allocation_gets_409_at_once(world: World) -> None:
    leg = await world.leg()
    assert (await leg.client.get("/api/v1/me")).status_code == 200  # remembered from here on
    await world.end(leg)

    async def status() -> int:
        return (await leg.client.get("/api/v1/me")).status_code

    await until_async("the announcement of its end", status, equals=409)
    for answer in (await leg.client.get("/api/v1/me"), await leg.report(report(1, loss=1.0))):
        assert answer.status_code == 409
        assert answer.json()["error"]["error"] == f"allocation {leg.allocation_id} has ended"


async def test_allocation_may_not_speak_for_another_trial(world: World) -> None:
    mine, other = await world.leg(), await world.leg()
    answer = await mine.client.post(
        f"/api/v1/trials/{other.trial_id}/metrics/batch",
        json={"run_id": 1, "reports": [report(1, loss=1.0)]},
    )
    assert answer.status_code == 403


async def test_users_manage_only_themselves(
    user: httpx.AsyncClient, agent: httpx.AsyncClient
) -> None:
    me = (await user.get("/api/v1/me")).json()["user"]["id"]
    changed = await user.patch(f"/api/v1/users/{me}", json={"displayName": "Det"})
    assert changed.json()["user"]["displayName"] == "Det"
    assert (await user.patch(f"/api/v1/users/{me}", json={"admin": True})).status_code == 403
    assert (await user.post("/api/v1/users", json={"user": {"username": "x"}})).status_code == 403
    made = await agent.post("/api/v1/users", json={"user": {"username": "ada"}, "password": "p"})
    again = await agent.post("/api/v1/users", json={"user": {"username": "ada"}})
    assert (made.status_code, again.status_code) == (200, 409)
    found = (await user.get("/api/v1/users/ada/by-username")).json()["user"]
    assert found["id"] == made.json()["user"]["id"]
    names = [one["username"] for one in (await user.get("/api/v1/users")).json()["users"]]
    assert names == ["admin", "determined", "ada"]
