"""A few hundred hostile requests, and every body that once held up the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.fuzz.by_role import attack_by_role
from tests.fuzz.by_schema import attack_by_schema
from tests.fuzz.guests import AGENT_TOKEN, RBAC, Guests, Service, guests_of, service_on
from tests.fuzz.heavy import Heavy, bodies
from tests.fuzz.run import Report, attack, check_log, seen
from tests.fuzz.traffic import Request
from tests.fuzz.verdict import complaint
from tests.integration.conftest import new_database


@pytest.fixture(scope="module")
def service(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with service_on(new_database(postgres_server), folder) as found:
        yield found


@pytest.fixture
async def guests(service: Service) -> AsyncIterator[Guests]:
    async with guests_of(service) as found:
        yield found


async def test_no_request_is_a_fault(guests: Guests) -> None:
    report = Report()
    await attack(guests, 200, 1, report)
    check_log(guests.service, report)
    print(report)
    assert not report.complaints, report
    assert not report.changed, report
    assert report.sent > 150
    # Some requests must succeed, else only refusals were tested.
    assert report.statuses[200] > 15


async def test_who_has_no_role_there_sees_and_changes_nothing(
    postgres_server: str, tmp_path: Path
) -> None:
    with service_on(new_database(postgres_server), tmp_path, cluster=RBAC) as service:
        report = await attack_by_role(service, 240, 1)
    print(report)
    assert not report.complaints, report
    assert not report.changed, report
    assert report.sent > 200
    assert report.statuses[200] > 20
    assert report.statuses[404] > 40


def test_a_mark_in_an_answer_is_seen() -> None:
    asked = Request("GET", "/api/v1/templates/zqmark")
    for status, request, found in (
        (200, asked, True),
        (404, asked, False),
        (404, Request("GET", "/api/v1/templates/3"), True),
        (200, Request("POST", "/api/v1/models", b"zqmark"), False),
    ):
        answer = httpx.Response(status, text="the zqmark")
        assert (seen(request, answer, ["zqmark"]) is not None) == found, (status, request)


async def test_no_request_of_schemathesis_is_a_fault(guests: Guests) -> None:
    report = await asyncio.to_thread(attack_by_schema, guests.service, 60, 1)
    print(report)
    assert not report.complaints, report
    assert report.sent > 25


async def test_large_bodies_are_refused_with_a_reason(guests: Guests) -> None:
    async with httpx.AsyncClient(base_url=guests.service.url, timeout=120) as client:
        client.headers["Authorization"] = f"Bearer {AGENT_TOKEN}"
        for heavy in bodies(guests.own_trial, files_mib=6):
            answer = await send_heavy(client, heavy)
            assert answer.status_code == heavy.status, f"{heavy.what}: {answer.text[:500]}"
            assert heavy.says in answer.text, f"{heavy.what}: {answer.text[:500]}"
            assert complaint(answer.status_code, answer.text) is None
        # Accepted values must not break the routes that show them.
        trial = f"/api/v1/trials/{guests.own_trial.leg.trial_id}"
        for path in (trial, f"{trial}/checkpoints", f"{trial}/logs?limit=3"):
            assert (await client.get(path)).status_code == 200


async def send_heavy(client: httpx.AsyncClient, heavy: Heavy) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(heavy.body), 65_536):
            yield heavy.body[start : start + 65_536]

    content = pieces() if heavy.chunked else heavy.body
    headers = {"Content-Type": "application/json", **heavy.headers}
    return await client.post(heavy.path, content=content, headers=headers)


def test_a_complaint_is_one() -> None:
    assert complaint(500, "{}") is not None
    assert complaint(400, "[SQL: SELECT 1 FROM users]") is not None
    assert complaint(400, "name: 2000 characters found, at most 1024 are allowed") is None
