"""``python -m tests.fuzz.run N SEED``: Send N hostile requests to a separate service and report the results.

The requests' tokens are nobody's, a stranger's, a trial's, an administrator's and the agents'. Exits with 1
when an answer was a fault or held SQL, a connection broke, a row changed that the guest may not change, or
the service's log holds a traceback. All requests go to 127.0.0.1.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import time
import urllib.parse
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fuzz.guests import (
    ADMIN,
    AGENT,
    GUESTS,
    HARMLESS,
    NOBODY,
    RBAC,
    Guests,
    Service,
    a_service,
    differences,
    guests_of,
)
from tests.fuzz.health import Health, Watch
from tests.fuzz.loop_watch import MARK
from tests.fuzz.traffic import Request, Traffic
from tests.fuzz.verdict import complaint

AT_ONCE = 4
RENEW_AFTER = 400
PATIENCE_S = 60.0
WAIT_S = 3.0
"""How long a route that waits for something is waited for."""


@dataclass
class Report:
    """The results of the requests."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    by_guest: collections.Counter[str] = field(default_factory=collections.Counter)
    complaints: list[str] = field(default_factory=list)
    changed: list[Any] = field(default_factory=list)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    waited: int = 0
    seconds: float = 0.0
    health: Health | None = None
    idle: Health | None = None

    @property
    def sent(self) -> int:
        return sum(self.by_guest.values())

    @property
    def failed(self) -> bool:
        return bool(self.complaints or self.changed)

    def __str__(self) -> str:
        lines = [
            f"{self.sent} requests in {self.seconds:.0f} s: "
            + ", ".join(f"{count} with {name}'s token" for name, count in self.by_guest.items()),
            "answers: "
            + ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items())),
            f"long polls left: {self.waited}",
            f"faults, SQL, broken connections: {len(self.complaints)}",
            *self.complaints[:50],
            f"rows changed by those who may not: {len(self.changed)}",
            *map(str, self.changed[:20]),
            str(self.health),
            f"a server that does nothing, at the same time: {self.idle}",
            "slowest:",
            *(f"  {taken:.2f} s {request[:200]}" for taken, request in self.slowest[:5]),
        ]
        return "\n".join(lines)


async def attack(guests: Guests, count: int, seed: int, report: Report) -> None:
    """Sends ``count`` requests, an equal number for each guest."""
    async with httpx.AsyncClient(base_url=guests.service.url, timeout=PATIENCE_S) as client:
        openapi = (await client.get("/openapi.json")).json()
        for place, guest in enumerate(GUESTS):
            share = count // len(GUESTS) + (place < count % len(GUESTS))
            await guests.renew()
            draw = random.Random(f"{seed} {guest}")
            traffic = Traffic(openapi, draw)
            left = share
            while left > 0:
                size = min(left, RENEW_AFTER)
                before = await _rows(guests, guest)
                await _burst(client, guests, guest, traffic, size, report)
                if guest in HARMLESS:
                    report.changed += differences(before, await _rows(guests, guest))
                left -= size
                if left > 0:
                    await guests.renew()


async def _rows(guests: Guests, guest: str) -> dict[str, list[str]]:
    if guest not in HARMLESS:
        return {}
    return await (guests.everything() if guest == NOBODY else guests.snapshot())


async def _burst(
    client: httpx.AsyncClient,
    guests: Guests,
    guest: str,
    traffic: Traffic,
    count: int,
    report: Report,
) -> None:
    left = count

    async def one_after_the_other() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            # A stranger and a trial ask for another user's things; the others ask for things that they may
            # change.
            mine = guests.mine if guest in HARMLESS else guests.own_trial
            if guest not in (NOBODY, ADMIN, AGENT) and traffic.draw.random() < 0.4:
                mine = guests.own_trial
            await send(client, guests.tokens[guest], guest, traffic.next(mine), report)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


async def send(
    client: httpx.AsyncClient,
    token: str | None,
    guest: str,
    request: Request,
    report: Report,
    marks: Collection[str] = (),
) -> None:
    """Send one request and record the result. ``marks``: texts that this guest may not see."""
    headers = dict(request.headers)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    report.by_guest[guest] += 1
    begun = time.perf_counter()
    try:
        answer = await client.request(
            request.method,
            request.url,
            content=request.body,
            headers=[(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
            timeout=WAIT_S if request.waits else PATIENCE_S,
        )
    except httpx.TimeoutException:
        if request.waits:
            report.waited += 1
        else:
            report.complaints.append(f"no answer for {PATIENCE_S:.0f} s: {guest}: {request}")
        return
    except (httpx.InvalidURL, httpx.LocalProtocolError):
        report.by_guest[guest] -= 1
        return
    except httpx.HTTPError as error:
        report.complaints.append(f"{type(error).__name__} {error}: {guest}: {request}")
        return
    taken = time.perf_counter() - begun
    if not request.waits:
        report.slowest.append((taken, f"{guest}: {request}"))
        report.slowest.sort(reverse=True)
        del report.slowest[5:]
    report.statuses[answer.status_code] += 1
    problem = complaint(answer.status_code, answer.text) or seen(request, answer, marks)
    if problem is not None:
        report.complaints.append(f"{problem}\n    {guest}: {request}")


def seen(request: Request, answer: httpx.Response, marks: Collection[str]) -> str | None:
    """The mark that the answer holds; what the request's body named, and the address of a refused one, may
    be said again."""
    said = "" if request.body is None else request.body.decode(errors="replace")
    if answer.is_error:
        said += urllib.parse.unquote(request.url)
    text = answer.text
    found = next((mark for mark in marks if mark in text and mark not in said), None)
    return None if found is None else f"{answer.status_code} shows {found}: {text[:300]}"


def check_log(service: Service, report: Report) -> None:
    """Nothing in the service's log is a fault; a complaint holds the fault's last lines."""
    faults: list[list[str]] = []
    for line in service.log.read_text(errors="replace").splitlines():
        if " ERROR " in line or line.startswith("Traceback"):
            faults.append([line])
        elif faults and (" | " in line[:12] or line.startswith(" ")):
            faults[-1].append(line)
    for first, *rest in faults:
        found = [f"the service's log: {first}", *rest[-6:]]
        report.complaints.append("\n    ".join(line[:300] for line in found))


async def _run(service: Service, count: int, seed: int) -> Report:
    report = Report()
    begun = time.monotonic()
    async with guests_of(service) as guests:
        with Watch(service.host, service.port) as watch:
            await attack(guests, count, seed, report)
    report.seconds = time.monotonic() - begun
    report.health, report.idle = watch.found, watch.idle
    check_log(service, report)
    return report


def said_by_the_watch(service: Service) -> list[str]:
    """Its lines of the service's log."""
    said: list[str] = []
    theirs = False
    for line in service.log.read_text(errors="replace").splitlines():
        theirs = line.startswith(MARK) or (theirs and line.startswith("    File "))
        if theirs:
            said.append(line)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20_000)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument(
        "--by-schema", type=int, default=None, help="how many of them schemathesis makes; a quarter"
    )
    parser.add_argument(
        "--roles",
        type=int,
        default=0,
        help="so many more, in a cluster in mode rbac (by_role.py)",
    )
    parser.add_argument(
        "--loop",
        action="store_true",
        help="print what keeps the service's event loop (loop_watch.py)",
    )
    given = parser.parse_args()
    failed = False
    if given.roles:
        from tests.fuzz.by_role import attack_by_role

        with a_service(cluster=RBAC) as service:
            report = asyncio.run(attack_by_role(service, given.roles, given.seed))
        print(f"with roles:\n{report}\n", flush=True)
        failed = report.failed
    if given.count < 1:
        raise SystemExit(failed)
    by_schema = given.count // 4 if given.by_schema is None else given.by_schema
    module = "tests.fuzz.loop_watch" if given.loop else "determined_service"
    with a_service(module) as service:
        report = asyncio.run(_run(service, given.count - by_schema, given.seed))
        print(report, flush=True)
        if given.loop:
            print(*said_by_the_watch(service), sep="\n", flush=True)
        failed = failed or report.failed
        if by_schema:
            from tests.fuzz.by_schema import attack_by_schema

            second = attack_by_schema(service, by_schema, given.seed)
            print(f"\nby schemathesis:\n{second}")
            if given.loop:
                print(*said_by_the_watch(service), sep="\n")
            failed = failed or second.failed
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
