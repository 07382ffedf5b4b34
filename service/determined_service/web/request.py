"""Reads the contents of a request for routes, within the limits."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import orjson
from starlette.requests import Request

from determined.common.wire import limits
from determined.common.wire.checks import show
from determined_service.base.aside import aside
from determined_service.base.checks import check_shape, check_value
from determined_service.base.errors import BadRequest

P = ParamSpec("P")
T = TypeVar("T")

INLINE_BYTES = 128 * 1024
"""Larger bodies are parsed in a thread."""
SLOW_INLINE_BYTES = 8 * 1024
"""The same for what only Python's json module reads."""


def _float(text: str) -> float | str:
    number = float(text)
    if math.isinf(number):
        return "-Infinity" if number < 0 else "Infinity"
    return number


def _int(text: str) -> int | float | str:
    # Python reads whole numbers of more than 4300 digits slowly, and refuses to.
    if len(text) > 25:
        return _float(text)
    number = int(text)
    return number if -(2**63) <= number < 2**63 else _float(text)


def _parse_slowly(raw: bytes) -> Any:
    """Parse large bodies, and those that orjson refuses: the hooks of Python's json module let other threads
    run meanwhile."""
    try:
        return json.loads(raw, parse_constant=str, parse_float=_float, parse_int=_int)
    except RecursionError as error:
        raise BadRequest(
            f"the request's body has lists and objects more than {limits.DEPTH} deep in each other; "
            f"{limits.DEPTH} are allowed"
        ) from error
    except ValueError as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error


async def parsed(raw: bytes) -> Any:
    """The JSON in ``raw``, including the extensions of Python's json module: bare ``NaN`` and infinities
    become strings, numbers too large for 64 bits become floats. Raises BadRequest.
    """
    if len(raw) <= INLINE_BYTES:
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(raw)
        if len(raw) <= SLOW_INLINE_BYTES:
            return _parse_slowly(raw)
    return await aside(len(raw), _parse_slowly, raw)


async def raw_body(request: Request, *, large: bool = False) -> Any:
    """The request's JSON as it is, ``{}`` for an empty body; raises BadRequest and TooLarge.

    For hot paths whose readers look at each value themselves. ``large``: as many lists and objects as
    reports of metrics, logs and checkpoints may have.
    """
    raw = await request.body()
    if not raw:
        return {}
    check_shape(raw, limits.LARGE_CONTAINERS if large else limits.CONTAINERS)
    return await parsed(raw)


async def body(request: Request, *, nul: bool = False, large: bool = False) -> Any:
    """The request's JSON without a model, ``{}`` for an empty one; raises BadRequest and TooLarge.

    For open shapes. ``nul``: NUL is let through, because the caller replaces it.
    """
    given = await raw_body(request, large=large)
    await check_body(request, given, limits.LARGE_VALUES if large else limits.VALUES, nul=nul)
    return given


async def check_body(
    request: Request, given: Any, values: int = limits.VALUES, *, nul: bool = False
) -> None:
    """:func:`~.checks.check_value` of the request's JSON, by :func:`off_loop`."""
    await off_loop(request, check_value, given, values=values, nul=nul)


async def off_loop(request: Request, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of ``work(*args)``, computed from the request's body: in a thread if that is large."""
    size = len(await request.body())
    if size > INLINE_BYTES:
        return await aside(size, work, *args, **kwargs)
    return work(*args, **kwargs)


async def object_body(request: Request, *, nul: bool = False, large: bool = False) -> Any:
    """As :func:`body`; raises BadRequest for anything but an object."""
    given = await body(request, nul=nul, large=large)
    if not isinstance(given, dict):
        raise BadRequest(f"the body must be an object, not {show(given)}")
    return given


def json_example(example: Any) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body without a model."""
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"requestBody": {"required": True, "content": content}}
