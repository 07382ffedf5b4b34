"""``det e validate`` and ``det e schema``, which need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Json, Overrides
from determined.cli.errors import talk
from determined.cli.output import render
from determined.cli.printing import echo


def validate(
    config_files: Annotated[list[Path], typer.Argument(help="YAML files", metavar="CONFIG_FILE")],
    config: Overrides = None,
    json: Json = False,
) -> None:
    """Check configuration files, and report every mistake with its line. No cluster is needed."""
    from determined import expconf

    report = []
    for path in config_files:
        problems: list[expconf.Problem] = []
        try:
            document = expconf.apply_overrides(expconf.read_yaml(path), config or ())
            expconf.check(document)
        except expconf.ConfigError as error:
            problems = error.problems
        report.append({"file": str(path), "problems": [p.as_dict() for p in problems]})
        for problem in problems:
            talk(str(problem))
        if not json and not problems:
            echo(f"{path}: valid")
    if json:
        render.print_json(report)
    if any(entry["problems"] for entry in report):
        raise typer.Exit(1)


def schema() -> None:
    """Print the JSON schema of configuration files, for editors."""
    from determined import expconf

    render.print_json(expconf.json_schema())


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("validate")(validate)
    app.command("schema")(schema)
