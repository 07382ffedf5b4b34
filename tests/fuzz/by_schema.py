"""The same guests with requests that schemathesis makes from ``/openapi.json``."""

from __future__ import annotations

import asyncio
import itertools
import time
import warnings
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.core.result import Ok

from tests.fuzz.guests import GUESTS, Service, guests_of
from tests.fuzz.health import Watch
from tests.fuzz.run import PATIENCE_S, WAIT_S, Report, check_log
from tests.fuzz.traffic import WAITS
from tests.fuzz.verdict import complaint


def attack_by_schema(service: Service, count: int, number: int) -> Report:
    """Sends about ``count`` requests to the routes in turn, each with another guest's token."""
    report = Report()
    begun = time.monotonic()
    tokens = asyncio.run(_tokens(service))
    with Watch(service.host, service.port) as watch, httpx.Client(timeout=PATIENCE_S) as client:
        schema = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
        guests = itertools.cycle(GUESTS)
        each = max(count // len(operations), 1)
        for operation in operations[: count // each]:
            _ask(client, service, operation, guests, tokens, each, number, report)
    report.seconds = time.monotonic() - begun
    report.health, report.idle = watch.found, watch.idle
    check_log(service, report)
    return report


async def _tokens(service: Service) -> dict[str, str | None]:
    async with guests_of(service) as guests:
        return dict(guests.tokens)


def _ask(
    client: httpx.Client,
    service: Service,
    operation: Any,
    guests: itertools.cycle[str],
    tokens: dict[str, str | None],
    count: int,
    number: int,
    report: Report,
) -> None:
    waits = any(word in operation.path for word in WAITS) or "logs" in operation.path

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        guest = next(guests)
        token = tokens[guest]
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        made = case.as_transport_kwargs(base_url=service.url, headers=headers)
        shown = f"{guest}: {made['method']} {made['url']} {str(made.get('json'))[:200]}"
        asked = {
            name: made[name]
            for name in ("method", "url", "params", "json", "headers", "cookies")
            if made.get(name) is not None
        }
        if "data" in made:
            asked["content"] = made["data"]
        _send(client, asked, shown, guest, waits, report)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ask()


def _send(
    client: httpx.Client, asked: dict[str, Any], shown: str, guest: str, waits: bool, report: Report
) -> None:
    try:
        cookies = asked.pop("cookies", {})
        if cookies:
            asked["headers"] = dict(asked["headers"]) | {
                "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())
            }
        answer = client.request(**asked, timeout=WAIT_S if waits else PATIENCE_S)
    except httpx.TimeoutException:
        report.by_guest[guest] += 1
        if waits:
            report.waited += 1
        else:
            report.complaints.append(f"no answer for {PATIENCE_S:.0f} s: {shown}")
        return
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError, ValueError, TypeError):
        # What HTTP, or JSON as httpx writes it, cannot say.
        return
    except httpx.HTTPError as error:
        report.by_guest[guest] += 1
        report.complaints.append(f"{type(error).__name__} {error}: {shown}")
        return
    report.by_guest[guest] += 1
    report.statuses[answer.status_code] += 1
    problem = complaint(answer.status_code, answer.text)
    if problem is not None:
        report.complaints.append(f"{problem}\n    {shown}")
