"""Fields that Determined's file has and this cluster does not use, or refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BeforeValidator

from determined.expconf.base import broken


@dataclass(frozen=True)
class NotUsed:
    """Marks a field that is accepted and not used; ``instead`` says what stands in its place."""

    instead: str


@dataclass(frozen=True)
class OnlyContainers:
    """Marks a field that trials in containers have; ``instead`` says what holds for the others."""

    instead: str


def refused(why: str, harmless: Callable[[Any], bool] = lambda value: False) -> BeforeValidator:
    """Refuses a field with the sentence ``why``, except for values for which ``harmless`` is true."""

    def check(value: Any) -> Any:
        if value is not None and not harmless(value):
            raise broken(why)
        return value

    return BeforeValidator(check)


def is_off(value: Any) -> bool:
    """Whether a section says that it is switched off: ``{enabled: false}``, or nothing."""
    return value in ({}, False) or (isinstance(value, dict) and value.get("enabled") is False)
