"""Reads the contents of a request for routes."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
from starlette.requests import Request

from determined_service.base.errors import BadRequest


def _float(text: str) -> float | str:
    number = float(text)
    if math.isinf(number):
        return "-Infinity" if number < 0 else "Infinity"
    return number


def _int(text: str) -> int | float | str:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else _float(text)


def parse_json(raw: bytes) -> Any:
    """Parse JSON, including the extensions of Python's json module: bare ``NaN`` and infinities become
    strings, numbers too large for 64 bits become floats. Raises BadRequest.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(raw, parse_constant=str, parse_float=_float, parse_int=_int)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error


async def body(request: Request) -> Any:
    """The request's JSON without a model, ``{}`` for an empty one; raises BadRequest.

    For hot paths and open shapes.
    """
    raw = await request.body()
    return parse_json(raw) if raw else {}


def json_example(example: Any) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads its body without a model."""
    content = {"application/json": {"schema": {"type": "object"}, "example": example}}
    return {"requestBody": {"required": True, "content": content}}
