"""``det experiment`` (``det e``): one module per kind of command."""

from __future__ import annotations

import typer

from determined.cli._groups import group
from determined.cli.experiment import (
    control,
    delete,
    download,
    edit,
    lists,
    logs,
    plot,
    resume,
    show,
    submit,
    validate,
)

app: typer.Typer = group("Searches and single trainings.", default="list")

for _module in (submit, validate, lists, show, logs, plot, control, resume, delete, edit, download):
    _module.register(app)
