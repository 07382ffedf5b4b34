"""Command groups with aliases and abbreviations, whose commands are imported when they are used.

A command's name may list its aliases (``"list|ls"``). Any unambiguous beginning of a name works
too, and the command ``help`` shows the group's help.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from determined.cli.printing import talk

if TYPE_CHECKING:
    from importlib import metadata

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


def _path(ctx: Any) -> list[str]:
    """The words of the command line up to this group, without the program's name."""
    words: list[str] = []
    while ctx.parent is not None:
        words.insert(0, ctx.info_name)
        ctx = ctx.parent
    return words


def refuse_absent(path: list[str], args: list[str]) -> None:
    """Ends the program if ``args[0]`` is a command of Determined that is not in the group ``path`` yet."""
    from determined.cli import absent

    found = absent.find([*path, *args], len(path))
    if found is not None:
        name, advice = found
        talk(
            f"error: `det {name}` is a command of Determined that is not here yet; meanwhile: {advice}"
        )
        raise typer.Exit(2)


def refuse_option(error: Any) -> None:
    """Ends the program if a usage error is about an option of Determined that is not here."""
    # By its name: typer has a copy of click's, or not.
    if type(error).__name__ != "NoSuchOption" or error.ctx is None:
        return
    from determined.cli import absent

    command = " ".join(_path(error.ctx))
    advice = absent.option(command, error.option_name)
    if advice is not None:
        talk(
            f"error: {error.option_name} of `det {command}` is an option of Determined that is not here: "
            f"{advice}"
        )
        raise typer.Exit(2) from None


def _refuse_unknown(path: list[str], word: str, names: Iterable[str]) -> None:
    import difflib

    from determined.cli import absent

    # An alias may be near, but the whole name says what it is. An absent command then says more.
    listed = [*absent.names(path), *names]
    known = {part: primary(name) for name in listed for part in name.split("|")}
    near = difflib.get_close_matches(word, known, n=1)
    place = " ".join(["det", *path])
    hint = f"the nearest is `{place} {known[near[0]]}`" if near else f"see `{place} --help`"
    talk(f"error: No such command {word!r}; {hint}")
    raise typer.Exit(2)


# A line break within a paragraph: the next line is neither empty nor an item nor indented.
_WRAPPED = re.compile(r"(?<=\S)\n(?![\n\s*-])")


def _tidy(command: Any, ctx: Any) -> None:
    """Lets the terminal's width wrap the help of the command and all below it, and shows no type of flags:
    `--detach <bool>` looks as if it took a value."""
    if command.help:
        command.help = _WRAPPED.sub(" ", inspect.cleandoc(command.help))
    for param in (*command.params, command.get_help_option(ctx)):
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    for below in getattr(command, "commands", {}).values():
        _tidy(below, ctx)


class PrefixGroup(TyperGroup):
    """A group of commands; ``default`` is the command that runs if none is given."""

    default: str | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # `det e <TAB>` asks for the commands, not for the default's arguments.
        if not args and self.default is not None and not ctx.resilient_parsing:
            args = [self.default]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0]
        names = self.list_commands(ctx)
        # An option here is a usage error, which the base class reports.
        found = find(word, names) if not word.startswith("-") else []
        is_exact = any(word in name.split("|") for name in found)
        if ctx.resilient_parsing:
            if len(found) != 1:
                return None, None, args
        elif word == "help" and not found:
            typer.echo(ctx.get_help())
            ctx.exit()
        elif not is_exact and not word.startswith("-"):
            refuse_absent(_path(ctx), args)
            if not found:
                _refuse_unknown(_path(ctx), word, names)
        if len(found) > 1:
            choices = ", ".join(sorted(primary(name) for name in found))
            ctx.fail(f"{word!r} is ambiguous: {choices}")
        if found:
            return primary(found[0]), self.get_command(ctx, found[0]), args[1:]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The commands by their whole names, without the aliases."""
        found = super().shell_complete(ctx, incomplete)
        for item in found:
            item.value = primary(item.value)
        return found


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
    """A group takes no options."""


def _check_words(command: Any, path: list[str], args: list[str]) -> None:
    """Refuses absent commands in the groups of other packages, which do not know them."""
    while args and not args[0].startswith("-") and not isinstance(command, PrefixGroup):
        below = getattr(command, "commands", None)
        if below is None:
            return
        if args[0] not in below:
            refuse_absent(path, args)
            return
        command, path, args = below[args[0]], [*path, args[0]], args[1:]


class LazyGroup(PrefixGroup):
    """The root group. ``modules`` maps a command's name to the module with its ``app`` and a line of
    help, so that `det version` and `det --help` import no other command.

    The entry points ``determined.cli`` of installed packages add further commands; ``summaries`` are lines
    of help for some of them.
    """

    modules: dict[str, tuple[str, str]] = {}
    summaries: dict[str, str] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted([*self.modules, *self._entry_points()])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        # An exact name needs no search through the installed packages.
        for name in self.modules:
            if args[0] in name.split("|"):
                command = self._load(name)
                _tidy(command, ctx)
                return primary(name), command, args[1:]
        found, _, rest = super().resolve_command(ctx, args)
        if found is None:
            return None, None, args
        full = next(name for name in self.list_commands(ctx) if primary(name) == found)
        command = self._load(full)
        _tidy(command, ctx)
        if not ctx.resilient_parsing:
            _check_words(command, [found], rest)
        return found, command, rest

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder with name and help, for lists; :meth:`resolve_command` loads the command."""
        if cmd_name in self.modules:
            return TyperCommand(cmd_name, help=self.modules[cmd_name][1])
        if cmd_name in self._entry_points():
            line = self.summaries.get(cmd_name, f"see `det {cmd_name} --help`")
            return TyperCommand(cmd_name, help=line)
        return None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _tidy(self, ctx)
        super().format_help(ctx, formatter)

    def _load(self, name: str) -> Any:
        if name in self.modules:
            app = importlib.import_module(self.modules[name][0]).app
        else:
            app = self._entry_points()[name].load()
        return typer.main.get_command(app) if isinstance(app, typer.Typer) else app

    @staticmethod
    def _entry_points() -> dict[str, metadata.EntryPoint]:
        from importlib import metadata

        return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
