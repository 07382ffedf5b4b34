"""Command groups with aliases and abbreviations, whose commands are imported when they are used.

A command's name may list its aliases (``"list|ls"``). Any unambiguous beginning of a name works
too, and the command ``help`` shows the group's help.
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
    """The command that has ``word`` as its name or alias, else all commands that begin with it.

    An empty list means that the word is unknown, several names mean that it is ambiguous.
    """
    listed = list(names)
    exact = [name for name in listed if word in name.split("|")]
    if exact:
        return exact[:1]
    return [name for name in listed if any(part.startswith(word) for part in name.split("|"))]


class PrefixGroup(TyperGroup):
    """A group of commands; ``default`` is the command that runs if none is given."""

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
        # An option here is a usage error, which the base class reports.
        found = find(word, self.list_commands(ctx)) if not word.startswith("-") else []
        if len(found) > 1:
            choices = ", ".join(sorted(primary(name) for name in found))
            ctx.fail(f"{word!r} is ambiguous: {choices}")
        if found:
            return primary(found[0]), self.get_command(ctx, found[0]), args[1:]
        return super().resolve_command(ctx, args)


def group(help_text: str, *, default: str | None = None) -> typer.Typer:
    """A new command group; ``default`` is the command that runs if none is given."""
    kind = type("DefaultGroup", (PrefixGroup,), {"default": default}) if default else PrefixGroup
    app = typer.Typer(
        cls=kind,
        help=help_text,
        no_args_is_help=default is None,
        add_completion=False,
    )
    # With a callback, typer treats the app as a group even if it has only one command.
    app.callback()(_no_options)
    return app


def _no_options() -> None:
    """A group has no options of its own."""


class LazyGroup(PrefixGroup):
    """The root group. ``modules`` maps a command's name to the module with its ``app`` and a line of
    help, so that `det version` and `det --help` import no other command.

    The entry points ``determined.cli`` of installed packages add further commands.
    """

    modules: dict[str, tuple[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*self.modules, *self._entry_points()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        # An exact name needs no search through the installed packages.
        for name in self.modules:
            if args[0] in name.split("|"):
                return primary(name), self._load(name), args[1:]
        found, _, rest = super().resolve_command(ctx, args)
        assert found is not None
        full = next(name for name in self.list_commands(ctx) if primary(name) == found)
        return found, self._load(full), rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder with name and help, for lists; :meth:`resolve_command` loads the command."""
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
