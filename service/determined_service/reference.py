"""Every route for users as one page: ``python -m determined_service.reference > PAGE``.

The page is docs/reference/rest.md; a test fails when it says something else than the routes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from determined_service import internal, public
from determined_service.access.dependencies import Rule
from determined_service.access.rules import Grant
from determined_service.app import create_app
from determined_service.base.settings import Settings
from determined_service.front import report

Address = tuple[str, str]
"""Method and path, as ``/openapi.json`` has them."""

HEAD = """# REST

After this page you know which requests the service answers, and who may send them. It is written by
`make docs` from the routes. Bodies and answers are described by a running service: for people at `/docs`, for
programs at `/openapi.json`. Routes for agents and flows (`/internal/v1`) are left out.

A request carries `Authorization: Bearer TOKEN` ([tokens](../operate/users.md#tokens)). *Owner* includes
administrators everywhere; what a task's own token may do is
[less than its owner](../operate/security.md#what-a-training-process-may). Refusals are JSON with a message
([refusals](../inside/service.md#refusals)); sizes and counts have [limits](../operate/limits.md).
"""

WHO = {
    None: "everybody",
    Grant.LOGGED_IN: "logged in",
    Grant.USER: "logged in, not by a task's token",
    Grant.OWNER: "owner",
    Grant.OWNER_ALONE: "owner, not by a task's token",
    Grant.OWNER_OR_TASKS: "owner",
    Grant.ITSELF: "the user, administrators",
    Grant.SENDER: "the task, owner",
    Grant.ADMINISTRATOR: "administrators",
    Grant.AGENT: "agents",
    Grant.SERVING: "agents, and the supervisor or run that serves it",
}
"""The senders of a request, in the words of the page. None: the route asks for no token."""


def rules_of(dependant: Dependant) -> Iterator[Rule]:
    """Every rule that FastAPI asks before it calls the route's function."""
    asked: object = dependant.call
    if isinstance(asked, Rule):
        yield asked
    for inner in dependant.dependencies:
        yield from rules_of(inner)


def declared_rules(routers: list[APIRouter] | None = None) -> dict[Address, list[Rule]]:
    """By address, the rules that the route stands under, each once; an empty list: it asks nobody."""
    if routers is None:
        routers = [*public.routers(), *internal.routers(), report.rest]
    return {
        (method, route.path_format): list(dict.fromkeys(rules_of(route.dependant)))
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def page() -> str:
    """The whole page, in Markdown."""
    settings = {"db_url": "postgresql://nobody@localhost/none", "agent_token": "none"}
    described = create_app(Settings.model_validate(settings)).openapi()
    rules = declared_rules()
    rows: dict[str, list[str]] = {tag["name"]: [] for tag in described["tags"]}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/internal/"):
                row = _row(method.upper(), path, operation, rules[method.upper(), path])
                rows[operation["tags"][-1]].append(row)
    text = HEAD
    for tag in described["tags"]:
        text += f"\n## {tag['name']}\n\n{tag['description']}\n\n"
        text += "| | address | who may | |\n|---|---|---|---|\n" + "".join(rows[tag["name"]])
    return text


def _row(method: str, path: str, operation: dict[str, Any], rules: list[Rule]) -> str:
    grant = rules[0].grant if rules else None
    return f"| {method} | `{path}` | {WHO[grant]} | {_first_sentence(operation)} |\n"


def _first_sentence(operation: dict[str, Any]) -> str:
    text = re.sub(r"\s+", " ", operation["description"]).strip().replace("``", "`")
    return re.split(r"(?<=[.;]) (?=[A-Z`])", text)[0].rstrip(";.").replace("|", r"\|")


if __name__ == "__main__":
    sys.stdout.write(page())
