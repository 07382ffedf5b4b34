"""``det e validate`` and ``det e schema``, which need no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Json, Overrides
from determined.cli.errors import talk
from determined.cli.output import render
from determined.cli.printing import echo
from determined.common.printable import one_line


def validate(
    config_files: Annotated[list[Path], typer.Argument(help="YAML files", metavar="CONFIG_FILE")],
    config: Overrides = None,
    json: Json = False,
) -> None:
    """Check configuration files, and report every mistake with its line. No cluster is needed.

    Warnings name what no cluster heeds, and values that probably mean something else.
    """
    from determined import expconf
    from determined.expconf.doubts import doubts
    from determined.expconf.heeding import Surroundings
    from determined.expconf.unheeded import dropped_fields, unheeded

    report = []
    for path in config_files:
        problems: list[expconf.Problem] = []
        remarks: list[str] = []
        try:
            document = expconf.apply_overrides(expconf.read_yaml(path), config or ())
            complete = expconf.check(document)
            remarks = [
                *dropped_fields(document.data),
                *unheeded(complete, Surroundings()),
                *doubts(complete),
            ]
        except expconf.ConfigError as error:
            problems = error.problems
        found = [problem.as_dict() for problem in problems]
        report.append({"file": str(path), "problems": found, "remarks": remarks})
        for problem in problems:
            talk(str(problem))
        for remark in remarks:
            talk(f"{path}: warning: {one_line(remark)}")
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
