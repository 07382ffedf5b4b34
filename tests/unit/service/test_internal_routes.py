"""The routes under ``/internal/v1`` equal the wire's addresses."""

from __future__ import annotations

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from determined.common.wire import paths
from determined.common.wire.agents import Registration, WorkRequest
from determined_service import internal
from determined_service.public import task_logs


def test_each_address_of_the_wire_has_its_route() -> None:
    routers = [*internal.routers(), task_logs.router]
    routes = {route.path for router in routers for route in router.routes if is_internal(route)}
    named = {value for name, value in vars(paths).items() if name.isupper()}
    assert routes == {value for value in named if value.startswith(f"{paths.PREFIX}/")}


def is_internal(route: object) -> bool:
    return isinstance(route, APIRoute) and route.path.startswith(paths.PREFIX)


def test_messages_of_the_previous_releases_agent_are_read() -> None:
    session = "b7a1d6f2-5a54-4a09-a5ba-07b61d5ddf3a"
    body = (
        f'{{"session": "{session}", "host": "h", "version": "0.1.0", "allocations": ["1.a.1"],'
        '"resource_pool": "default", "slot_type": "cuda", "slots":'
        '[{"id": 0, "device": {"type": "cuda", "uuid": "GPU-1", "brand": ""}}], "more": 1}'
    )
    found = TypeAdapter(Registration).validate_json(body)
    assert isinstance(found, Registration)
    assert (str(found.session), found.wire, found.slots[0].device.uuid) == (session, 0, "GPU-1")
    asked = TypeAdapter(WorkRequest).validate_json(f'{{"session": "{session}", "running": []}}')
    assert (asked.wire, asked.prefect_poll_seq, asked.timeout_s) == (0, -1, 5.0)
