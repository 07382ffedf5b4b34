"""Reads a ``searcher`` section with the pydantic model of its search method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from determined_searchers.errors import SearcherError
from determined_searchers.settings import read_length

Model = TypeVar("Model", bound=BaseModel)


def read_section(model: type[Model], section: Mapping[str, Any]) -> Model:
    """The fields of ``section`` that ``model`` has (null: not given), defaults filled in.

    ``max_length`` becomes its number. Raises SearcherError with the path of the first field that is wrong.
    It is meant for a method's ``from_config``, which may get a section that was not checked before.
    """
    given = {
        name: value
        for name, value in section.items()
        if name in model.model_fields and value is not None
    }
    if "max_length" in given:
        given["max_length"] = read_length(section)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(step) for step in ("searcher", *first["loc"]))
        cause = first.get("ctx", {}).get("error")
        found = "" if first["type"] == "missing" or cause else f", found {first['input']!r}"
        raise SearcherError(f"{path}: {cause or first['msg']}{found}") from None
