"""Options that are declared once and taken by several commands."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.testing import CliRunner

from determined.cli import option_groups
from determined.cli.printing import echo

app = typer.Typer()


def _sum(
    left: Annotated[int, typer.Option("--left")] = 1,
    right: Annotated[int, typer.Option("--right")] = 2,
) -> int:
    if right == 0:
        raise typer.BadParameter("right must not be 0")
    return left + right


@app.command("all")
@option_groups.of(_sum, "total")
def all_options(
    ctx: typer.Context,
    first: Annotated[str, typer.Option("--first")] = "f",
    *,
    total: int,
    last: Annotated[str, typer.Option("--last")] = "l",
) -> None:
    echo(f"{first} {total} {last}")


@app.command("left")
@option_groups.of(_sum, "total", without=("right",))
def left_alone(total: int) -> None:
    echo(str(total))


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def test_the_parameter_gets_what_the_options_say() -> None:
    assert run("all") == (0, "f 3 l\n")
    assert run("all", "--left", "5", "--last", "z") == (0, "f 7 z\n")


def test_the_options_stand_in_the_parameters_place() -> None:
    _, text = run("all", "--help")
    names = [f"--{name}" for name in ("first", "left", "right", "last")]
    assert sorted(names, key=text.index) == names


def test_a_command_may_lack_some_of_them() -> None:
    assert run("left", "--left", "5") == (0, "7\n")
    assert run("left", "--right", "5")[0] == 2


def test_their_usage_error_is_the_commands() -> None:
    code, text = run("all", "--right", "0")
    assert code == 2
    assert "right must not be 0" in text
