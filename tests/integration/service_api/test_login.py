"""Logging in, and the rights of the three kinds of token."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import httpx
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from determined_registry.database.tables import user_sessions, users
from determined_service.access import authenticator
from determined_service.access.accounts import FRESH
from determined_service.access.throttle import PAIR
from determined_service.base import passwords
from determined_service.base.db import Database
from tests.integration.conftest import client_of
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


async def test_users_are_not_agents(user: httpx.AsyncClient) -> None:
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


async def refused(client: httpx.AsyncClient) -> None:
    """Returns as soon as the client's session has ended."""

    async def status() -> int:
        return (await client.get("/api/v1/me")).status_code

    await until_async("the session has ended", status, equals=401)


class Account:
    """A user with the password ``first``, and as many sessions as asked for."""

    def __init__(self, app: FastAPI, user_id: int) -> None:
        self.app, self.user_id = app, user_id
        self.clients: list[httpx.AsyncClient] = []

    async def login(self, password: str) -> httpx.Response:
        login = {"username": "ada", "password": password}
        async with client_of(self.app, None) as client:
            return await client.post("/api/v1/auth/login", json=login)

    async def session(self, password: str = "first") -> httpx.AsyncClient:
        made = await self.login(password)
        assert made.status_code == 200, made.text
        client = client_of(self.app, made.json()["token"])
        self.clients.append(client)
        return client

    async def grow_old(self) -> None:
        """All sessions were opened long ago."""
        db: Database = self.app.state.db
        long_ago = sa.func.now() - FRESH
        async with db.tx() as conn:
            await conn.execute(sa.update(user_sessions).values(created_at=long_ago))

    async def change(
        self, client: httpx.AsyncClient, new: str, old: str | None = None
    ) -> httpx.Response:
        body = {"password": new} if old is None else {"password": new, "currentPassword": old}
        return await client.post(f"/api/v1/users/{self.user_id}/password", json=body)


@pytest.fixture
async def ada(service_app: FastAPI, agent: httpx.AsyncClient) -> AsyncIterator[Account]:
    body = {"user": {"username": "ada"}, "password": "first"}
    made = await agent.post("/api/v1/users", json=body)
    account = Account(service_app, made.json()["user"]["id"])
    yield account
    for client in account.clients:
        await client.aclose()


async def test_a_new_password_needs_the_old_one_and_ends_the_other_sessions(ada: Account) -> None:
    own, other = await ada.session(), await ada.session()
    assert (await other.get("/api/v1/me")).status_code == 200  # remembered from here on
    await ada.grow_old()
    for answer, said in (
        (await ada.change(own, "second"), "the old password is missing"),
        (await ada.change(own, "second", "wrong"), "is wrong: nothing was changed"),
        (
            await own.patch(f"/api/v1/users/{ada.user_id}", json={"password": "second"}),
            "log in as ada again and change the password within 10 minutes",
        ),
    ):
        assert (answer.status_code, said in answer.text) == (403, True), answer.text
    assert (await ada.login("first")).status_code == 200
    assert (await other.get("/api/v1/me")).status_code == 200
    changed = await ada.change(own, "second", "first")
    assert changed.status_code == 200, changed.text
    assert (await own.get("/api/v1/me")).status_code == 200

    await refused(other)
    assert (await ada.login("first")).status_code == 401
    assert (await ada.login("second")).status_code == 200


async def test_a_session_that_has_just_begun_stands_for_the_old_password(ada: Account) -> None:
    """Determined's published clients send only the new one: a JSON string."""
    own = await ada.session()
    sent = passwords.as_sent("second")
    answer = await own.post(f"/api/v1/users/{ada.user_id}/password", json=sent)
    assert answer.status_code == 200, answer.text
    assert (await ada.login("second")).status_code == 200
    await ada.grow_old()
    answer = await own.post(f"/api/v1/users/{ada.user_id}/password", json=sent)
    assert answer.status_code == 403


async def test_an_administrator_gives_another_a_new_password_without_the_old_one(
    ada: Account, anonymous: httpx.AsyncClient, service_app: FastAPI
) -> None:
    theirs = await ada.session()
    login = {"username": "admin", "password": ""}
    token = (await anonymous.post("/api/v1/auth/login", json=login)).json()["token"]
    await ada.grow_old()
    async with client_of(service_app, token) as admin:
        assert (await ada.change(admin, "second")).status_code == 200
        me = (await admin.get("/api/v1/me")).json()["user"]["id"]
        own = await admin.post(f"/api/v1/users/{me}/password", json={"password": "mine"})
        assert own.status_code == 403
    assert (await ada.login("second")).status_code == 200

    await refused(theirs)


async def test_guessing_is_slowed_down(ada: Account, anonymous: httpx.AsyncClient) -> None:
    own = await ada.session()
    answers = [await ada.login(f"guess{number}") for number in range(20)]
    assert [answer.status_code for answer in answers] == [401] * PAIR.burst + [429] * 15
    last = answers[-1]
    assert last.json()["error"]["error"].startswith(
        "too many wrong passwords of user 'ada' from 127.0.0.1: try again in "
    )
    assert 0 < int(last.headers["Retry-After"]) <= PAIR.every_s
    # A session goes on, others log in, and who does not exist is treated alike.
    assert (await own.get("/api/v1/me")).status_code == 200
    # The old password is guessed no faster.
    assert (await ada.change(own, "second", "guess")).status_code == 429
    admin = {"username": "admin", "password": ""}
    assert (await anonymous.post("/api/v1/auth/login", json=admin)).status_code == 200
    nobody = {"username": "nobody", "password": "x"}
    found = [await anonymous.post("/api/v1/auth/login", json=nobody) for _ in range(6)]
    assert [answer.status_code for answer in found] == [401] * PAIR.burst + [429]


async def test_blank_passwords_need_an_unreachable_service(
    ada: Account, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    new = {"user": {"username": "bob"}}
    path = f"/api/v1/users/{ada.user_id}"
    hashed_blank = hashlib.sha512(b"GubPEmmotfiK9TMD6Zdw").hexdigest()
    settings = service_app.state.settings
    for reachable in ({"host": "0.0.0.0"}, {"public_url": "https://det.example"}):
        service_app.state.settings = settings.model_copy(update=reachable)
        for answer in (
            await agent.post("/api/v1/users", json=new),
            await agent.post(
                "/api/v1/users", json=new | {"password": hashed_blank, "isHashed": True}
            ),
            await agent.patch(path, json={"password": ""}),
            await agent.post(f"{path}/password", json=""),
        ):
            assert answer.status_code == 400
            assert "a blank password would let everybody in" in answer.text
            assert "give the user a password" in answer.text
        # Who got one before logs in from the machine itself, to set a password.
        blank = {"username": "admin", "password": ""}
        for client, status in ((("127.0.0.1", 1), 200), (("192.0.2.7", 1), 403)):
            transport = httpx.ASGITransport(service_app, client=client)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as asker:
                answer = await asker.post("/api/v1/auth/login", json=blank)
                assert answer.status_code == status, answer.text
                forwarded = {"X-Forwarded-For": "192.0.2.7"}
                answer = await asker.post("/api/v1/auth/login", json=blank, headers=forwarded)
                assert (answer.status_code, "has a blank password" in answer.text) == (403, True)
    service_app.state.settings = settings
    assert (await agent.post("/api/v1/users", json=new)).status_code == 200


async def test_short_passwords_need_an_unreachable_service(
    ada: Account, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    settings = service_app.state.settings
    path, master = f"/api/v1/users/{ada.user_id}", "/api/v1/master"
    assert (await agent.get(master)).json()["passwordMinChars"] == 0
    service_app.state.settings = settings.model_copy(update={"host": "0.0.0.0"})
    assert (await agent.get(master)).json()["passwordMinChars"] == 8
    for password, status in (("1234567", 400), ("12345678", 200)):
        new = {"user": {"username": f"u{password}"}, "password": password}
        for answer in (
            await agent.post("/api/v1/users", json=new),
            await agent.patch(path, json={"password": password}),
            await agent.post(f"{path}/password", json={"password": password}),
        ):
            assert answer.status_code == status, answer.text
            assert status == 200 or "7 characters found, at least 8 are needed" in answer.text
            assert password not in answer.text or status == 200
    service_app.state.settings = settings
    assert (await agent.patch(path, json={"password": "x"})).status_code == 200
