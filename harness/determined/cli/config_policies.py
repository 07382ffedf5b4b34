"""``det config-policies`` (``det cp``)"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from determined.cli.arguments.options import Json, Yaml
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.state import state

app = group(
    "Policies: what holds for all configurations of a workspace, or of the cluster.",
    default="describe",
)


class Workload(StrEnum):
    """The kind of work to which a policy applies."""

    EXPERIMENT = "experiment"
    TASKS = "tasks"

    @property
    def wire(self) -> str:
        return "NTSC" if self == Workload.TASKS else "EXPERIMENT"


Type = Annotated[
    Workload,
    typer.Argument(
        metavar="WORKLOAD_TYPE",
        help="experiment, or tasks: commands, notebooks, shells, TensorBoards, generic tasks",
    ),
]
Workspace = Annotated[
    str | None,
    typer.Option(
        "-w", "--workspace-name", metavar="NAME", help="of this workspace; default: the global one"
    ),
]


def _of(workload: Workload, workspace: str | None) -> str:
    where = "the cluster" if workspace is None else f"workspace {workspace}"
    what = "tasks" if workload == Workload.TASKS else "experiments"
    return f"the policy for {what} of {where}"


@app.command("describe")
def describe(
    ctx: typer.Context,
    workload_type: Type,
    workspace_name: Workspace = None,
    json: Json = False,
    yaml: Yaml = False,
) -> None:
    """Print a policy as YAML; {} if there is none."""
    if json and yaml:
        raise CliError("--json and --yaml exclude each other: leave one of them out")
    found = state(ctx).config_policies.get(workload_type.wire, workspace_name)
    (render.print_json if json else render.print_yaml)(found)


@app.command("set")
def set_policy(
    ctx: typer.Context,
    workload_type: Type,
    config_file: Annotated[
        Path, typer.Argument(help="YAML or JSON file with invariant_config and constraints")
    ],
    workspace_name: Workspace = None,
) -> None:
    """Set a policy in place of the one before.

    It holds for what is submitted from now on. Of a workspace: for its owner and administrators; the global
    one: for administrators.
    """
    from determined import expconf

    # Checked here, too, where the file is known.
    text = expconf.read_text(config_file)
    document = expconf.load_yaml(text, str(config_file))
    expconf.check_policy(document, of_tasks=workload_type == Workload.TASKS)
    state(ctx).config_policies.set(workload_type.wire, text, workspace_name)
    talk(f"set {_of(workload_type, workspace_name)}")


@app.command("delete")
def delete(ctx: typer.Context, workload_type: Type, workspace_name: Workspace = None) -> None:
    """Take a policy away. What was submitted under it stays as it is."""
    state(ctx).config_policies.delete(workload_type.wire, workspace_name)
    talk(f"deleted {_of(workload_type, workspace_name)}")
