"""``det experiment`` (``det e``): one module per kind of command."""

from __future__ import annotations

import typer

from determined.cli.experiment import (
    control,
    delete,
    download,
    edit,
    lists,
    logs,
    plot,
    report,
    resume,
    show,
    submit,
    validate,
)
from determined.cli.groups import group

app: typer.Typer = group("Hyperparameter searches and single training runs.", default="list")

for _module in (
    submit,
    validate,
    lists,
    show,
    logs,
    plot,
    report,
    control,
    resume,
    delete,
    edit,
    download,
):
    _module.register(app)
