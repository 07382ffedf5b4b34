"""Types with limits, for what routes declare: :data:`Id`, :data:`Name` …

The limits are those of :mod:`determined.common.wire.limits`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from determined.common.wire import limits
from determined.common.wire.checks import text_problem


def _storable(text: str) -> str:
    problem = text_problem(text)
    if problem:
        raise ValueError(problem)
    return text


_Plain = AfterValidator(_storable)
Id = Annotated[int, Field(ge=-limits.INT32 - 1, le=limits.INT32)]
"""The id of an experiment, trial or user; Determined's clients send negative ones for "none"."""
BigId = Annotated[int, Field(ge=-limits.INT64 - 1, le=limits.INT64)]
Count = Annotated[int, Field(ge=0, le=limits.INT32)]
BigCount = Annotated[int, Field(ge=0, le=limits.INT64)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=limits.NAME_CHARS), _Plain]
Text = Annotated[str, Field(max_length=limits.TEXT_CHARS), _Plain]
Notes = Annotated[str, Field(max_length=limits.NOTES_CHARS), _Plain]
Password = Annotated[str, Field(max_length=limits.PASSWORD_CHARS), _Plain]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=limits.KEY_CHARS), _Plain]
Pattern = Annotated[str, Field(max_length=limits.PATTERN_CHARS)]
Priority = Annotated[int, Field(ge=1, le=99)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Labels = Annotated[list[Name], Field(max_length=limits.LABELS)]
ManyIds = Annotated[list[Id], Field(max_length=limits.MANY_IDS)]
ManyNames = Annotated[list[Name], Field(max_length=limits.MANY_IDS)]
