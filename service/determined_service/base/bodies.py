"""Bodies as Determined's clients send them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


class UpstreamBody(BaseModel):
    """Names are in camelCase, unknown fields are ignored, and ``null`` is the same as left out: Determined's
    client sends it for what its caller did not give."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}
