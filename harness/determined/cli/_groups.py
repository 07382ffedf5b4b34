"""Command groups that know aliases and prefixes, and load what they need when they need it.

A command's name may list its aliases (``"list|ls"``); any unambiguous beginning of a name works
too, and ``help`` shows the group's help.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

ENTRY_POINTS = "determined.cli"


def primary(name: str) -> str:
    """``"list|ls"`` → ``"list"``."""
    return name.split("|")[0]


def find(word: str, names: Iterable[str]) -> list[str]:
    """The names that ``word`` may stand for: exactly (an alias too), else by its beginning.

    Empty: unknown. More than one: ambiguous.
    """
    listed = list(names)
    exact = [name for name in listed if word in name.split("|")]
    if exact:
        return exact[:1]
    return [name for name in listed if any(part.startswith(word) for part in name.split("|"))]


class PrefixGroup(TyperGroup):
    """A group of commands; ``default`` runs when the group is called bare."""

    default: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.default is not None:
            args = [self.default]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0]
        if word == "help" and not find("help", self.list_commands(ctx)):
            typer.echo(ctx.get_help())
            ctx.exit()
        # An option here is a usage error, which the caller says best.
        found = find(word, self.list_commands(ctx)) if not word.startswith("-") else []
        if len(found) > 1:
            choices = ", ".join(sorted(primary(name) for name in found))
            ctx.fail(f"{word!r} is ambiguous: {choices}")
        if found:
            return primary(found[0]), self.get_command(ctx, found[0]), args[1:]
        return super().resolve_command(ctx, args)


def group(help_text: str, *, default: str | None = None) -> typer.Typer:
    """A new command group; ``default`` is the command that it runs when called bare."""
    kind = type("DefaultGroup", (PrefixGroup,), {"default": default}) if default else PrefixGroup
    app = typer.Typer(
        cls=kind,
        help=help_text,
        no_args_is_help=default is None,
        add_completion=False,
    )
    # A callback makes it a group even while it has one command only.
    app.callback()(_no_options)
    return app


def _no_options() -> None:
    """Nothing to set at a group."""


class LazyGroup(PrefixGroup):
    """The root. ``modules`` maps a command's name to the module that has its ``app``, and one line of
    help, so that neither `det version` nor `det --help` imports any of the others.

    Further commands come from the entry points ``determined.cli`` of installed packages.
    """

    modules: dict[str, tuple[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*self.modules, *self._entry_points()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        # An exact name needs no search through what is installed.
        for name in self.modules:
            if args[0] in name.split("|"):
                return primary(name), self._load(name), args[1:]
        found, _, rest = super().resolve_command(ctx, args)
        assert found is not None
        full = next(name for name in self.list_commands(ctx) if primary(name) == found)
        return found, self._load(full), rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in with name and help, for lists; :meth:`resolve_command` loads the real one."""
        if cmd_name in self.modules:
            return TyperCommand(cmd_name, help=self.modules[cmd_name][1])
        if cmd_name in self._entry_points():
            return TyperCommand(cmd_name, help=f"see `det {cmd_name} --help`")
        return None

    def _load(self, name: str) -> Any:
        if name in self.modules:
            app = importlib.import_module(self.modules[name][0]).app
        else:
            app = self._entry_points()[name].load()
        return typer.main.get_command(app) if isinstance(app, typer.Typer) else app

    @staticmethod
    def _entry_points() -> dict[str, metadata.EntryPoint]:
        return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
