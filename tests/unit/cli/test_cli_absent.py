"""Every command and option of Determined exists here, or is listed as absent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from determined.cli import absent
from determined.cli.groups import LazyGroup
from determined.cli.root import app
from tests.unit.cli.conftest import Det

# The commands of release 0.38.1, with their aliases.
COMMANDS = Path(__file__).with_name("determined_commands.txt").read_text().splitlines()

# The options of releases 0.38.1 and 0.22, of each command (of `deploy`, of the group itself).
OPTIONS = Path(__file__).with_name("determined_options.txt").read_text().splitlines()


def present(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command of `det` by its full name, with all aliases."""
    if not hasattr(command, "list_commands"):
        yield " ".join(path)
        return
    for name in command.list_commands(None):
        lazy = isinstance(command, LazyGroup)
        inner = command._load(name) if lazy else command.get_command(None, name)
        yield from present(inner, (*path, name))


def tree(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command and group of `det` by its whole name, without aliases."""
    yield " ".join(path), command
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        inner = command._load(name) if isinstance(command, LazyGroup) else command.commands[name]
        yield from tree(inner, (*path, name.split("|")[0]))


def spellings(line: str) -> Iterator[list[str]]:
    """Each way to write a command, of the aliases of its words."""
    first, *rest = line.split()
    for word in first.split("|"):
        if not rest:
            yield [word]
        else:
            for tail in spellings(" ".join(rest)):
                yield [word, *tail]


def table(node: absent.Tree = absent.TREE, path: str = "") -> Iterator[tuple[str, str]]:
    """Each absent command with its advice."""
    for name, inner in node.items():
        if isinstance(inner, str):
            yield f"{path}{name}", inner
        else:
            yield from table(inner, f"{path}{name} ")


@pytest.fixture(scope="module")
def here() -> set[str]:
    return {
        " ".join(words)
        for full in present(typer.main.get_command(app))
        for words in spellings(full)
    }


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_here_or_known_to_be_absent(line: str, here: set[str]) -> None:
    for words in spellings(line):
        # `d` is a prefix of `deploy`, which another package adds.
        words = ["deploy" if word == "d" else word for word in words]
        found = absent.find(words)
        name = " ".join(word.split("|")[0] for word in line.split())
        assert " ".join(words) in here or (found is not None and found[0] == name), words


def test_existing_commands_are_not_listed_as_absent(here: set[str]) -> None:
    listed = {" ".join(words) for line, _ in table() for words in spellings(line)}
    assert listed & here == set(), "delete these from determined/cli/absent.py"


def test_every_absent_command_is_one_of_determineds() -> None:
    known = {" ".join(words) for line in COMMANDS for words in spellings(line)}

    for line, _ in table():
        for words in spellings(line):
            assert " ".join(words) in known


@pytest.mark.parametrize(
    ("typed", "name", "advice"),
    [
        ("workspace bindings set w", "workspace bindings set", "namespace"),
        ("w resource-quota set w 3", "workspace resource-quota set", "namespace"),
        ("e set log-retention 3 --forever", "experiment set log-retention", "det e delete"),
        ("master config set", "master config set", "cluster-up --config FILE"),
        ("deploy aws up", "deploy aws up", "det deploy local cluster-up"),
        ("deploy local agent-up host", "deploy local agent-up", "cluster-up"),
        ("d gcp", "deploy gcp", "det deploy local cluster-up"),
    ],
)
def test_an_absent_command_names_an_alternative(
    det: Det, typed: str, name: str, advice: str
) -> None:
    result = det(*typed.split())
    assert (result.exit_code, result.stdout) == (2, "")
    said = f"error: `det {name}` is a command of Determined that is not here yet; meanwhile: "
    assert result.stderr.startswith(said)
    assert advice in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_advice_names_commands_that_are_here(here: set[str]) -> None:
    named = {
        found
        for _, text in table()
        for found in re.findall(
            r"\bdet (deploy local [a-z-]+|[a-z]+ (?:label |set )?[a-z-]+)", text
        )
    }
    assert len(named) > 3
    assert {one for one in named if one not in here} == set()


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    return {
        name: {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
        for name, command in tree(typer.main.get_command(app))
    }


def test_every_option_is_here_or_known_to_be_absent(options: dict[str, set[str]]) -> None:
    unknown = {}
    for line in OPTIONS:
        command, _, given = line.partition(": ")
        name = " ".join(word.split("|")[0] for word in command.split())
        # An absent command is reported as absent with any options.
        if name in options:
            known = options[name] | absent.OPTIONS.get(name, {}).keys()
            unknown[name] = set(given.split()) - known
    assert len(unknown) > 50
    assert {name: missing for name, missing in unknown.items() if missing} == {}


def test_absent_options_exist_only_in_determined(
    options: dict[str, set[str]],
) -> None:
    theirs = {
        " ".join(word.split("|")[0] for word in command.split()): set(given.split())
        for command, _, given in (line.partition(": ") for line in OPTIONS)
    }
    for command, said in absent.OPTIONS.items():
        assert said.keys() & options[command] == set(), command
        assert said.keys() <= theirs[command], command


@pytest.mark.parametrize(
    ("typed", "option", "command"),
    [
        ("e create c.yaml . --git", "--git", "experiment create"),
        ("exp create c.yaml . -g", "-g", "experiment create"),
        ("shell start --passphrase", "--passphrase", "shell start"),
        ("a disable a1 --json", "--json", "agent disable"),
        ("deploy local cluster-up --no-autorestart", "--no-autorestart", "deploy local cluster-up"),
        (
            "deploy local cluster-up --det-version=0.38.1",
            "--det-version",
            "deploy local cluster-up",
        ),
        ("deploy --no-preflight-checks local cluster-up", "--no-preflight-checks", "deploy"),
    ],
)
def test_an_absent_option_names_an_alternative(
    det: Det, typed: str, option: str, command: str
) -> None:
    result = det(*typed.split())
    advice = absent.OPTIONS[command][option]
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {option} of `det {command}` is an option of Determined that is not here: {advice}\n"
    )


def test_an_unknown_option_is_a_usage_error(det: Det) -> None:
    result = det("e", "create", "c.yaml", "--frobnicate")
    assert result.exit_code == 2
    assert "No such option: --frobnicate" in result.stderr
