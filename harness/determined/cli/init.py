"""``det init``"""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import CliError, talk
from determined.cli.output import render
from determined.cli.output.render import Column
from determined.common import examples, installation
from determined.common.examples import EXAMPLES, Example

app = typer.Typer(add_completion=False)


COLUMNS = (Column("Template", "name"), Column("What it is", "about"))


def _names() -> list[str]:
    return list(EXAMPLES)


@app.command()
def init(
    name: Annotated[
        str | None,
        typer.Argument(help="which; none: list them", metavar="TEMPLATE", autocompletion=_names),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="the new folder; default: the template's name",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Write a folder to start from: a script that trains, and its configurations. Without a template: list
    the templates.

    Every template runs as it is, with `det flow run` and by itself. Nothing that is there already is changed.
    """
    if name is None:
        listed = [{"name": key, "about": one.about} for key, one in EXAMPLES.items()]
        render.show(COLUMNS, listed, chosen(json, csv), what="templates")
        if not (json or csv):
            talk("next: det init TEMPLATE [FOLDER]")
        return
    if name not in EXAMPLES:
        raise CliError(f"unknown template {name!r}; choose {', '.join(EXAMPLES)}")
    template = EXAMPLES[name]
    target = folder if folder is not None else Path(name)
    _write(template, target)
    script, config, here = (
        shlex.quote(str(path))
        for path in (target / template.script, target / template.config, target)
    )
    talk(f"wrote {target}: {', '.join(template.files)}")
    missing = [one for one in template.packages if importlib.util.find_spec(one) is None]
    if missing:
        needed = installation.command(*template.extras)
        talk(f"{template.script} needs {', '.join(missing)}, not installed here: {needed}")
    talk(f"off the cluster: python {script}")
    talk(f"next: det flow run {config} {here}")


def _write(template: Example, target: Path) -> None:
    """Raises CliError, and then has written nothing, if ``target`` has anything in it."""
    source = examples.folder() / template.folder
    texts = {file: (source / file).read_bytes() for file in template.files}
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CliError(
            f"{target} is there already, and nothing is overwritten: give another folder as the last argument"
        )
    target.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        # Whoever put a file there meanwhile keeps it.
        with (target / file).open("xb") as new:
            new.write(text)
