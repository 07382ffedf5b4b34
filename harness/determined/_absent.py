"""Names of Determined that this release lacks. Importing one raises an error that says what to use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def absent(module: str, advice: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a module's ``__getattr__`` that raises ImportError with the advice for a name that is absent.

    It is ImportError, because ``from module import name`` does not show the text of an AttributeError.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the module's
        if name in advice:
            raise ImportError(f"{module}.{name} is not in this release: {advice[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
