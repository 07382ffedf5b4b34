"""Every route of the service asks whether its caller may."""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from determined_service.access.dependencies import PARAMETERS, ExperimentReader, May
from determined_service.access.rules import Action, Grant
from determined_service.access.targets import Kind
from determined_service.app import create_app
from determined_service.base.settings import Settings
from determined_service.reference import Address, declared_rules
from determined_service.web.bounds import check_model_body

PUBLIC: dict[Address, str] = {
    ("POST", "/mlflow/"): "logs in with a password, as the login route does",
    ("GET", "/task-login"): "asks for the password, the same to everybody",
    ("POST", "/task-login"): "logs in with a password, as the login route does",
    (
        "GET",
        "/det/interactive/{task_id}/{rest}",
    ): "leads to the page that asks for the password, the same to everybody",
    ("GET", "/"): "says where to go, the same to everybody",
    ("GET", "/health"): "who watches the process has no token",
    ("GET", "/ready"): "who starts the cluster has no token yet",
    ("GET", "/info"): "clients compare versions before they log in",
    (
        "GET",
        "/api/v1/master",
    ): "clients ask for the version and the kinds of login before they log in",
    ("GET", "/api/v1/master/telemetry"): "says the same to everybody: nothing is sent anywhere",
    ("POST", "/api/v1/auth/login"): "gives the token: the password is what it asks for",
    (
        "GET",
        "/plots/experiments/{experiment_id}/{key}",
    ): "the signed key in the link is the permission",
}
OWNED = (Grant.OWNER, Grant.SENDER, Grant.ITSELF, Grant.SERVING)


@pytest.fixture(scope="module")
def app() -> FastAPI:
    settings = {"db_url": "postgresql://nobody@localhost/none", "agent_token": "secret"}
    return create_app(Settings.model_validate(settings))


async def addresses(app: FastAPI) -> set[Address]:
    """Every path and method of ``/openapi.json``."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    return {(method.upper(), path) for path, methods in paths.items() for method in methods}


async def test_every_route_declares_one_rule_or_is_public(app: FastAPI) -> None:
    found = await addresses(app)
    assert len(found) > 100
    rules = declared_rules()
    wrong = {one: rules.get(one) for one in found - PUBLIC.keys() if len(rules.get(one, ())) != 1}
    assert wrong == {}, "these routes ask nobody, or stand under several rules"


async def test_the_list_of_public_routes_is_true(app: FastAPI) -> None:
    assert PUBLIC.keys() <= await addresses(app)
    rules = declared_rules()
    assert [address for address in PUBLIC if rules[address]] == []


def test_a_rule_about_one_thing_finds_it_in_the_path() -> None:
    """``may(…)`` admits only administrators when the path names nothing."""
    for (method, path), (rule,) in ((a, r) for a, r in declared_rules().items() if r):
        if isinstance(rule, May) and rule.grant in OWNED:
            assert f"{{{PARAMETERS[rule.kind]}}}" in path, f"{method} {path}"


def test_only_reading_is_declared_by_get() -> None:
    """… except requests of a training process for itself, requests of agents and flows, and reads inside a
    task."""
    others = (Action.READ, Action.REPORT, Action.SERVE, Action.ENTER)
    rules = declared_rules()
    assert [a for a, r in rules.items() if a[0] == "GET" and r and r[0].action not in others] == []
    # These routes change nothing, although they have a body. MLflow's server sends changes to this service's
    # routes, with the user's rights; the route checks requests to Prefect (test_prefect_visitors).
    passed_on = ("/mlflow/{path}", "/prefect/{path}")
    reads = {
        a
        for a, r in rules.items()
        if a[0] != "GET" and a[1] not in passed_on and r and r[0].action == Action.READ
    }
    assert reads == {
        ("POST", "/api/v1/preview-hp-search"),
        ("POST", "/searcher/preview"),
        ("POST", "/api/v1/experiments/{experiment_id}/file"),
        ("POST", "/api/v1/groups/search"),
        ("POST", "/api/v1/runs"),
        ("POST", "/api/v1/roles/search"),
        ("POST", "/api/v1/roles/search/by-assignability"),
        ("POST", "/api/v1/roles/search/by-ids"),
        # A connection gives no right: each request to the task is decided separately.
        ("POST", "/api/v1/tasks/{task_id}/visits"),
    }


def test_internal_routes_are_for_agents_supervisors_and_runs_alone() -> None:
    for (method, path), found in declared_rules().items():
        internal = path.startswith("/internal/")
        assert internal == any(rule.action == Action.SERVE for rule in found), f"{method} {path}"


def test_a_route_without_a_check_is_found() -> None:
    router = APIRouter()

    @router.get("/asks")
    async def asks(user: ExperimentReader) -> None: ...

    @router.post("/asks-nobody")
    async def asks_nobody() -> None: ...

    found = declared_rules([router])
    assert [rule.kind for rule in found["GET", "/asks"]] == [Kind.EXPERIMENT]
    assert found["POST", "/asks-nobody"] == []


def test_rights_outside_the_table_cannot_be_declared() -> None:
    with pytest.raises(KeyError):
        May(Action.DELETE, Kind.USER)


def test_every_route_checks_the_bounds_of_its_body(app: FastAPI) -> None:
    """And no route is analysed again at the first request, as included routers are."""
    ours = [route for route in app.router.routes if isinstance(route, APIRoute)]
    unchecked = [
        route.path
        for route in ours
        if check_model_body not in [dependency.dependency for dependency in route.dependencies]
    ]
    assert len(ours) > 100
    assert not unchecked
    others = {type(route).__name__ for route in app.router.routes} - {"APIRoute", "PageRoute"}
    assert others == {"Route"}  # FastAPI's own pages
