"""Options that several commands take together, declared once as the parameters of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any


def of(
    read: Callable[..., Any], parameter: str, *, without: Container[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of ``read``, in the place of its ``parameter``, which gets the result.

    ``without``: parameters of ``read`` that the command lacks; ``read`` has defaults for them. A usage error
    that ``read`` raises ends the command before it begins.
    """
    added = {
        name: one
        for name, one in inspect.signature(read, eval_str=True).parameters.items()
        if name not in without
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            values = {name: given.pop(name) for name in added}
            command(**given, **{parameter: read(**values)})

        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for name, one in own.parameters.items():
            parameters += added.values() if name == parameter else [one]
        # typer reads the options from here.
        shown = own.replace(parameters=parameters)
        with_options.__signature__ = shown  # type: ignore[attr-defined]
        with_options.__annotations__ = {
            name: one.annotation for name, one in shown.parameters.items()
        }
        return with_options

    return decorate
