"""Bodies that hold a model definition, which may be a hundred MiB: read once it is known who asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, PrivateAttr, ValidationError

from determined_service.submission import intake
from determined_service.submission.model_definition import ModelDefinition


class WithFiles(BaseModel):
    """``_packed``: the files, if they came packed and not in the body's own field; ``_several``: by name."""

    _packed: ModelDefinition | None = PrivateAttr(None)
    _several: dict[str, ModelDefinition] = PrivateAttr(default_factory=dict)


B = TypeVar("B", bound=WithFiles)


@contextlib.asynccontextmanager
async def read(request: Request, kind: type[B]) -> AsyncIterator[B]:
    """The body as ``kind``; its files exist until the block ends. Raises what `intake.take_in` does, and
    RequestValidationError."""
    async with intake.take_in(request) as found:
        try:
            given = kind.model_validate(found.fields)
        except ValidationError as error:
            raise RequestValidationError(
                [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
            ) from error
        given._packed = found.definition
        given._several = found.definitions
        yield given


def described(kind: type[BaseModel]) -> dict[str, Any]:
    """For ``openapi_extra`` of a route that reads such a body itself."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
