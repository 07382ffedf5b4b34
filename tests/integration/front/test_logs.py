"""Logs as pages: windows, filters, links to lines, downloads, and what programs print."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from bs4 import Tag
from fastapi import FastAPI

from determined.common import printable
from determined_service.front import ansi
from tests.integration.front.conftest import Page, Pages
from tests.integration.service_api.test_task_logs import line, send
from tests.integration.service_api.world import Leg, World
from tests.waiting import TIMEOUT_S

HOSTILE = "<script>alert(1)</script>\u202e\"'&\u2028"


def shown(page: Page) -> list[str]:
    return [one.get_text() for one in page.soup.select("#log .said-line")]


def link(page: Page, text: str) -> str:
    (found,) = [one for one in page.soup.select("a") if one.get_text() == text]
    return str(found["href"]).removeprefix("/det")


def has(page: Page, text: str) -> bool:
    return any(one.get_text() == text for one in page.soup.select("a"))


async def _log(leg: Leg, agent: httpx.AsyncClient, *lines: dict[str, Any]) -> str:
    await send(agent, leg, *lines)
    return f"/trials/{leg.trial_id}/logs"


@pytest.fixture
async def leg(world: World) -> Leg:
    return await world.leg()


async def test_windows_follow_each_other(pages: Pages, leg: Leg, agent: httpx.AsyncClient) -> None:
    address = await _log(leg, agent, *(line(f"{number}\n") for number in range(1, 451)))
    end = await pages.open(address)
    assert shown(end) == [str(number) for number in range(251, 451)]
    assert end.one("body")["data-live"] == f"trial:{leg.trial_id} logs:{leg.task_id}"
    assert not has(end, "Later lines") and not has(end, "The end")
    before = await pages.open(link(end, "Earlier lines"))
    assert shown(before) == [str(number) for number in range(51, 251)]
    assert before.one("body")["data-live"] == "", "this window does not grow"
    first = await pages.open(link(before, "Earlier lines"))
    assert shown(first) == [str(number) for number in range(1, 51)]
    assert not has(first, "Earlier lines")
    after = await pages.open(link(before, "Later lines"))
    assert shown(after) == shown(end)
    assert not has(after, "Later lines")
    assert shown(await pages.open(link(first, "The end"))) == shown(end)


async def test_a_link_to_a_line_shows_it_in_the_middle(
    pages: Pages, leg: Leg, agent: httpx.AsyncClient
) -> None:
    address = await _log(leg, agent, *(line(f"{number}\n") for number in range(1, 451)))
    some = await pages.open(link(await pages.open(address), "Earlier lines"))
    at = next(one for one in some.soup.select("#log > div") if one.get_text().endswith("200"))
    there = at.find("a")
    assert isinstance(there, Tag)
    page = await pages.open(str(there["href"]).removeprefix("/det"))
    sought = page.one("#log .sought")
    assert str(there["href"]).endswith(f"#{sought['id']}")
    assert shown(page) == [str(number) for number in range(100, 300)]
    assert has(page, "Earlier lines") and has(page, "Later lines")


async def test_filters_are_in_the_address(pages: Pages, leg: Leg, agent: httpx.AsyncClient) -> None:
    address = await _log(
        leg,
        agent,
        line("a debug\n", 1e9, level="DEBUG", rank=1),
        line("an info\n", 1e9 + 60, level="INFO", rank=1, stdtype="stderr"),
        line("a warning 100%\n", 1e9 + 120, level="WARNING", rank=2),
        line("an error\n", 1e9 + 180, level="ERROR", rank=None, source="service"),
    )

    async def found(**given: Any) -> list[str]:
        return shown(await pages.open(address, params=given))

    assert await found(level="WARNING") == ["a warning 100%", "an error"]
    assert await found(rank="1") == ["a debug", "an info"]
    assert await found(rank="-1") == ["an error"]
    assert await found(stream="stderr") == ["an info"]
    assert await found(text="100%") == ["a warning 100%"]
    assert await found(text="^an? (info|error)", regex="true") == ["an info", "an error"]
    assert await found(since="2001-09-09T01:47:40", until="2001-09-09T01:49:00") == [
        "a warning 100%"
    ]
    assert await found(agent="agent-9") == []
    page = await pages.open(address, params={"level": "WARNING", "text": "a"})
    assert page.one("#text")["value"] == "a"
    assert page.one("#level option[selected]").get_text() == "WARNING"
    nothing = await pages.open(address, params={"text": "nowhere"})
    assert "No line matches these filters" in nothing.text and has(nothing, "Without filters")
    bad = await pages.open(address, params={"text": "(", "regex": "true"})
    assert bad.status == 400 and "cannot be searched for" in bad.text
    assert (await pages.open(address, params={"rank": "x"})).status == 400


async def test_long_lines_are_folded_and_whole_on_their_page(
    pages: Pages, leg: Leg, agent: httpx.AsyncClient
) -> None:
    long = "x" * 99_990 + "the end ü"
    address = await _log(leg, agent, line(f"{long}\n"), line("short\n"))
    page = await pages.open(address)
    assert len(page.answer.content) < 20_000
    (more,) = [one for one in page.soup.select("#log a") if "whole line" in one.get_text()]
    assert "100.0 kB" in more.get_text()
    whole = await pages.open(str(more["href"]).removeprefix("/det"))
    assert whole.one("pre").get_text() == long
    assert (await pages.open(f"{address}/lines/999999")).status == 404


async def test_what_programs_print_stays_text(
    pages: Pages, leg: Leg, agent: httpx.AsyncClient
) -> None:
    address = await _log(
        leg,
        agent,
        line(f"{HOSTILE}\n"),
        line("\x1b[1;31mred <b>\x1b[0m plain\x1b]0;title\x07\r\n"),
        line("a\0b\n"),
    )
    page = await pages.open(address)
    assert shown(page)[0] == printable.plain(HOSTILE)
    assert "<script>alert" not in page.answer.text
    for mark in ("\u202e", "\x1b", "\u2028", "\0", "\x07"):
        assert mark not in page.answer.text
    red = page.one("#log .ansi-red")
    assert (red.get_text(), red["class"]) == ("red <b>", ["ansi-red", "bold"])
    assert shown(page)[1:] == ["red <b> plain\\x1b]0;title\\x07", "a\\x00b"]


async def test_downloads_are_text(pages: Pages, leg: Leg, agent: httpx.AsyncClient) -> None:
    address = await _log(
        leg, agent, *(line(f"line {number}\n", 1.25, level="ERROR") for number in range(2500))
    )
    await send(agent, leg, line("other\n", level="INFO"))
    page = await pages.open(f"{address}?level=ERROR")
    there = link(page, "Download")
    answer = await pages.client.get(f"/det{there}")
    lines = answer.text.splitlines()
    assert len(lines) == 2500
    assert lines[2499] == "[1970-01-01T00:00:01.250Z] [rank=0] || line 2499"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == (
        f'attachment; filename="trial-{leg.trial_id}.log"'
    )
    refused = await pages.open(f"{address}/download?text=(&regex=true")
    assert (refused.status, "cannot be searched for" in refused.text) == (400, True)
    of_task = await pages.client.get(f"/det/tasks/{leg.task_id}/logs/download")
    assert len(of_task.text.splitlines()) == 2501


async def test_an_experiment_shows_the_trial_that_failed(
    pages: Pages, world: World, agent: httpx.AsyncClient
) -> None:
    experiment = await world.experiment()
    failed = await world.start(experiment, *await world.trial(experiment, state="ERROR"))
    other = await world.start(experiment, *await world.trial(experiment))
    await send(agent, failed, line("it broke\n"))
    await send(agent, other, line("it goes on\n"))
    address = f"/experiments/{experiment}/logs"
    page = await pages.open(address)
    assert shown(page) == ["it broke"]
    page = await pages.open(f"{address}?trial={other.trial_id}")
    assert shown(page) == ["it goes on"]
    filtered = await pages.open(f"{address}?trial={other.trial_id}&text=nothing")
    assert link(filtered, "Without filters") == f"{address}?trial={other.trial_id}"
    elsewhere = await world.leg()
    wrong = await pages.open(f"{address}?trial={elsewhere.trial_id}")
    assert wrong.status == 404 and "belongs to experiment" in wrong.text
    empty = await world.experiment()
    assert "No trial has begun yet" in (await pages.open(f"/experiments/{empty}/logs")).text


async def test_a_task_has_its_log(pages: Pages, leg: Leg, agent: httpx.AsyncClient) -> None:
    await send(agent, leg, line("hello\n"))
    page = await pages.open(f"/tasks/{leg.task_id}/logs")
    assert shown(page) == ["hello"]
    assert page.one("body")["data-live"] == f"logs:{leg.task_id} task:{leg.task_id}"
    whole = await pages.open(f"/tasks/{leg.task_id}/logs/lines/{_ids(page)[0]}")
    assert whole.one("pre").get_text() == "hello"


def _ids(page: Page) -> list[int]:
    return [int(str(one["id"]).removeprefix("line-")) for one in page.soup.select("#log > div")]


async def test_a_new_line_makes_an_open_page_fetch_itself(
    pages: Pages, leg: Leg, agent: httpx.AsyncClient, service_app: FastAPI
) -> None:
    events: asyncio.Queue[bytes] = asyncio.Queue()
    gone = asyncio.Event()
    cookie = "; ".join(f"{name}={value}" for name, value in pages.client.cookies.items())

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send_on(message: Any) -> None:
        if message["type"] == "http.response.body":
            events.put_nowait(message["body"])

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/det/events", "raw_path": b"/det/events", "root_path": "",
        "query_string": f"topic=logs:{leg.task_id}".encode(), "client": ("127.0.0.1", 1),
        "server": ("det.localhost", 80),
        "headers": [(b"host", b"det.localhost"), (b"cookie", cookie.encode())],
    }  # fmt: skip
    first: dict[str, Any] = {"type": "http.request", "body": b"", "more_body": False}
    given = [first]

    async def asked() -> dict[str, Any]:
        return given.pop() if given else await receive()

    stream = asyncio.create_task(service_app(scope, asked, send_on))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert (await events.get()).startswith(b"retry:")
            await send(agent, leg, line("new\n"))
            while await events.get() != b"event: changed\ndata:\n\n":
                pass
    finally:
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", [("plain", "")]),
        ("\x1b[32mgood\x1b[m.", [("good", "ansi-green"), (".", "")]),
        (
            "\x1b[1mbold\x1b[22m \x1b[91mred\x1b[39m",
            [("bold", "bold"), (" ", ""), ("red", "ansi-red")],
        ),
        ("\x1b[38;5;31mmany\x1b[38;2;1;31;1mmore\x1b[48;5;1m", [("many", ""), ("more", "")]),
        ("\x1b[31m\x1b[0m", []),
        ("\x1b[2Jx", [("\x1b[2Jx", "")]),
    ],
)
def test_colours_become_classes(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(one.text, one.look) for one in ansi.pieces(text)] == expected


def test_a_line_of_colours_is_bounded() -> None:
    found = ansi.pieces("\x1b[31mx\x1b[32my" * 5000)
    assert len(found) <= ansi.PIECES + 1
    assert "".join(one.text for one in found) == "xy" * 5000
