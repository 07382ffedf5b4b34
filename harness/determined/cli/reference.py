"""Every command and option of `det` as one page: ``python -m determined.cli.reference > PAGE``.

The page is docs/reference/commands.md; a test fails when it says something else than the commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from determined.cli.printing import echo

HEAD = """# Commands

Every command of `det` with its options, written by `make docs` from the code. How commands are named, which
outputs they have and where they find the service: [the command line](cli.md).
"""
ABSENT = """
## Commands of Determined that are not here

Each says so when it is typed, with what to use.

| command | instead |
|---|---|
"""


def page() -> str:
    """The whole page, in Markdown."""
    # Help texts must not depend on who asks.
    for name in ("COLUMNS", "DET_MASTER", "DET_USER", "DET_PASS"):
        os.environ.pop(name, None)
    import typer.main

    from determined.cli import absent, root

    command: Any = typer.main.get_command(root.app)
    text = HEAD + "".join(_group(command, _context(command, "det", None), depth=2))
    return text + ABSENT + "".join(_absent(absent.TREE, "det"))


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.make_context(name, [], parent=parent, resilient_parsing=True)


def _group(command: Any, context: Any, depth: int) -> Iterator[str]:
    own = list(_options(command, context))
    if own:
        yield from ("\n", *own)
    for name in command.list_commands(context):
        first, *aliases = name.split("|")
        _, found, _ = command.resolve_command(context, [first])
        if found is None or found.hidden:
            continue
        inner = _context(found, first, context)
        title = inner.command_path + (f" (or `{'`, `'.join(aliases)}`)" if aliases else "")
        is_group = hasattr(found, "list_commands")
        yield f"\n{'#' * depth} {title}\n"
        help_ = _one_line(found.help or found.short_help or "")
        if help_:
            yield f"\n{help_}\n"
        if is_group:
            yield from _group(found, inner, depth + 1)
        else:
            yield f"\n```\n{_usage(found, inner)}\n```\n"
            options = list(_options(found, inner))
            if options:
                yield from ("\n", *options)


def _usage(command: Any, context: Any) -> str:
    words = [context.command_path, *command.collect_usage_pieces(context)]
    return " ".join(words)


def _options(command: Any, context: Any) -> Iterator[str]:
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or "--help" in parameter.opts:
            continue
        name, help_ = record
        if parameter.param_type_name == "argument" and not help_:
            continue
        rows.append(f"| `{_cell(name)}` | {_cell(help_)} |\n")
    if rows:
        yield "| option | |\n|---|---|\n"
        yield from rows


def _absent(tree: Any, path: str) -> Iterator[str]:
    for name, below in tree.items():
        here = f"{path} {name.split('|')[0]}"
        if isinstance(below, str):
            yield f"| `{here}` | {_cell(below)} |\n"
        else:
            yield from _absent(below, here)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _cell(text: str) -> str:
    return _one_line(text).replace("|", r"\|")


if __name__ == "__main__":
    echo(page(), end="")
