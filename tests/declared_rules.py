"""Which rule each route of the service declares: read from the routes' dependencies."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from determined_service import internal, public
from determined_service.access.dependencies import Rule

Address = tuple[str, str]
"""Method and path, as ``/openapi.json`` has them."""


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
        routers = [*public.routers(), *internal.routers()]
    return {
        (method, route.path_format): list(dict.fromkeys(rules_of(route.dependant)))
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
