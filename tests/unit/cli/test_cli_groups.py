"""Finding commands: aliases, prefixes, lazy loading."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest
import typer

from determined.cli import groups
from determined.cli.root import Root, app
from tests.unit.cli.conftest import Det
from tests.unit.cli.test_cli_absent import tree
from tests.unit.sdk.fake_service import FakeService, experiment
from tests.waiting import TIMEOUT_S

NAMES = ["list|ls", "list-trials|lt", "list-checkpoints|lc", "logs", "label", "kill"]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("list", ["list|ls"]),
        ("ls", ["list|ls"]),
        ("lt", ["list-trials|lt"]),
        ("k", ["kill"]),
        ("list-t", ["list-trials|lt"]),
        ("lo", ["logs"]),
        ("l", ["list|ls", "list-trials|lt", "list-checkpoints|lc", "logs", "label"]),
        ("x", []),
    ],
)
def test_words_stand_for_names(word: str, found: list[str]) -> None:
    assert groups.find(word, NAMES) == found


def test_an_exact_name_beats_longer_ones() -> None:
    assert groups.find("list", ["list-trials", "list"]) == ["list"]


@pytest.mark.parametrize("words", ["experiment list", "e ls", "exp ls", "e", "experiment"])
def test_aliases_prefixes_and_defaults(det: Det, service: FakeService, words: str) -> None:
    service.experiments[1] = experiment()
    result = det(*words.split())
    assert result.exit_code == 0, result.stderr
    assert "digits" in result.stdout


def test_an_ambiguous_prefix_is_a_usage_error(det: Det) -> None:
    result = det("e", "li")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'li' is ambiguous: list, list-checkpoints, list-trials" in result.stderr


def test_an_unknown_command_is_a_usage_error(det: Det) -> None:
    result = det("experimnet")
    assert (result.exit_code, result.stdout) == (2, "")
    said = "error: No such command 'experimnet'; the nearest is `det experiment`\n"
    assert result.stderr == said
    assert "the nearest is `det experiment list-checkpoints`" in det("e", "lst-checkpoint").stderr
    # An absent command is near, too, and then says what to use.
    assert "the nearest is `det notebook`" in det("notbook", "start").stderr
    assert "the nearest is `det experiment set weight`" in det("e", "set", "wieght", "2").stderr
    assert "see `det experiment set --help`" in det("e", "set", "zzz").stderr


@pytest.mark.parametrize("args", [["help"], ["--help"], ["-h"], []])
def test_help_lists_every_noun(det: Det, args: list[str]) -> None:
    result = det(*args)
    assert result.exit_code == 0
    for name in [*Root.modules, "deploy"]:
        assert name in result.stdout


@pytest.mark.parametrize("name", sorted(Root.modules))
def test_every_group_loads_and_has_help(det: Det, name: str) -> None:
    result = det(name.split("|")[0], "--help")
    assert result.exit_code == 0, result.output
    if name not in (
        "version",
        "preview-search",
        "run",
        "exec",
        "attach",
        "init",
        "open",
    ):  # commands, no groups
        assert det(name.split("|")[0], "help").stdout == result.stdout


def test_installed_packages_add_groups(det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer()

    @app.command()
    def hello() -> None:
        typer.echo("hello from outside")

    class Point:
        name = "greet"

        @staticmethod
        def load() -> typer.Typer:
            return app

    asked: list[str] = []

    def entry_points(group: str) -> list[type[Point]]:
        asked.append(group)
        return [Point]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert det("gr").stdout == "hello from outside\n"
    assert set(asked) == {"determined.cli"}


@pytest.mark.parametrize("args", [["version"], ["--help"], ["e", "--help"], ["e", "schema"]])
def test_commands_start_light(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from determined.cli import main\n"
        f"sys.argv = ['det', *{args}]\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    loaded = set(out.stderr.split())
    assert "typer" in loaded
    heavy = {"torch", "prefect", "numpy", "sqlalchemy", "fastapi", "determined_deployments"}
    assert loaded & heavy == set()
    assert "httpx" not in loaded
    if args == ["--help"]:
        assert loaded & {"yaml", "orjson"} == set()


def test_no_help_cuts_the_name_of_an_option(det: Det, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 80 columns."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    every = [(path, command) for path, command in tree(typer.main.get_command(app)) if path]
    assert len(every) > 150
    for path, command in every:
        shown = det(*path.split(), "--help").stdout
        assert max(map(len, shown.splitlines())) <= 80
        words = set(re.split(r"[\s,]+", shown))
        options = [param for param in command.params if not getattr(param, "hidden", False)]
        names = [name for param in options for name in param.opts if name.startswith("--")]
        assert set(names) <= words, path
        assert "...]..." not in shown and "...}..." not in shown, path


def test_help_fills_the_terminals_width_and_flags_have_no_type(
    det: Det, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 110)
    shown = det("exec", "--help").stdout
    # One paragraph of the docstring, which has its line breaks at other words.
    assert "the same directory, as the same account and" in shown
    assert "bool" not in shown
    assert "bool" not in det("--help").stdout
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    assert "with a Postgres and a Prefect of yours." in det("deploy", "--help").stdout
