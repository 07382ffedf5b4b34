"""Which commands of the published client were run against the service: the table of
docs/start/from-determined.md.

``DET_TESTS_RECORD=FILE pytest tests/compat`` writes the commands that the tests run into FILE;
``python -m tests.compat.commands_table FILE`` prints the table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.compat.upstream_client import installed_python

# By command, its names: the first one is the full one, others are aliases.
_TREE = """
import argparse, json
from determined import cli as base
from determined.cli import cli

def walk(parser, path):
    subs = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not subs:
        yield path
    names = {}
    for one in subs:
        for name, sub in one.choices.items():
            names.setdefault(id(sub), (sub, []))[1].append(name)
    for sub, of in names.values():
        yield from walk(sub, [*path, of])

parser = cli.make_parser()
base.add_args(parser, cli.all_args_description)
print(json.dumps(list(walk(parser, []))))
"""
Command = tuple[tuple[str, ...], ...]
WITH_A_VALUE = ("-m", "--master", "-u", "--user")
NO_COMMANDS = {"deploy", "help"}
"""Of the first word: what does not speak to a service."""


def commands() -> list[Command]:
    """Every command of the published client."""
    run = subprocess.run(
        [installed_python(), "-c", _TREE], capture_output=True, text=True, check=True
    )
    found = [tuple(tuple(names) for names in path) for path in json.loads(run.stdout)]
    return [one for one in found if one[0][0] not in NO_COMMANDS and one[-1] != ("help",)]


def command_of(args: Sequence[str], known: Sequence[Command]) -> Command | None:
    """The command that these arguments run; None: none of the known ones."""
    words = list(args)
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in WITH_A_VALUE else 1 :]
    for one in known:
        if all(word in names for word, names in zip(words, one, strict=False)) and len(
            words
        ) >= len(one):
            return one
    return None


def table(ran: Sequence[tuple[Sequence[str], int]], known: Sequence[Command]) -> Iterator[str]:
    """The lines of the table. ``ran``: arguments and exit codes."""
    codes: dict[Command, set[int]] = defaultdict(set)
    for args, code in ran:
        if (found := command_of(args, known)) is not None:
            codes[found].add(code)
    rows: dict[str, tuple[list[str], list[str], list[str]]] = {}
    for one in known:
        of = rows.setdefault(one[0][0], ([], [], []))
        place = 0 if 0 in codes[one] else 1 if codes[one] else 2
        of[place].append(" ".join(names[0] for names in one[1:]) or one[0][0])
    yield "| `det …` | works | answers with a reason | not tried |"
    yield "|---|---|---|---|"
    for name, row in rows.items():
        cells = (", ".join(f"`{one}`" for one in cell) for cell in row)
        yield f"| `{name}` | {' | '.join(cells)} |"
    sums = [sum(len(row[place]) for row in rows.values()) for place in range(3)]
    yield f"| {len(known)} commands | {sums[0]} | {sums[1]} | {sums[2]} |"


if __name__ == "__main__":
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    for line in table([(one["args"], one["code"]) for one in lines], commands()):
        print(line)
