"""Workspaces and projects on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli import option_groups
from determined.cli.arguments.options import Csv, Json, Limit, Offset, Order, chosen
from determined.cli.errors import CliError, talk
from determined.cli.output import format as f
from determined.cli.output.render import Format
from determined.cli.state import State, state
from determined.common.printable import counted

if TYPE_CHECKING:
    from determined.experimental import _workspace

Workspace = Annotated[str, typer.Argument(help="name of the workspace", metavar="WORKSPACE_NAME")]
Project = Annotated[str, typer.Argument(help="name of the project", metavar="PROJECT_NAME")]
WithinWorkspace = Annotated[
    str | None,
    typer.Option("-w", "--workspace-name", help="only of this workspace", metavar="NAME"),
]
IntoWorkspace = Annotated[
    str | None,
    typer.Option("-w", "--workspace-name", help="workspace, with --project-name", metavar="NAME"),
]
ProjectName = Annotated[
    str | None, typer.Option("--project-name", help="project of that workspace", metavar="NAME")
]


class PlaceSort(StrEnum):
    """The sort keys of lists of workspaces and projects."""

    ID = "id"
    NAME = "name"


@dataclass(frozen=True)
class PlaceList:
    """How a list of workspaces or projects, or of a project's experiments, is read and printed."""

    sort_by: PlaceSort
    order_by: Order
    page_size: int
    offset: int
    format: Format

    @property
    def pages(self) -> dict[str, Any]:
        """The arguments of the SDK's iterators over workspaces and projects."""
        params = {
            "sortBy": f"SORT_BY_{self.sort_by.name}",
            "orderBy": f"ORDER_BY_{self.order_by.name}",
        }
        return {"params": params, "offset": self.offset, "page_size": self.page_size}


def _place_list(
    sort_by: Annotated[PlaceSort, typer.Option("--sort-by")] = PlaceSort.ID,
    order_by: Annotated[Order, typer.Option("--order-by")] = Order.ASC,
    limit: Limit = 200,
    offset: Offset = 0,
    json: Json = False,
    csv: Csv = False,
) -> PlaceList:
    return PlaceList(sort_by, order_by, limit, offset, chosen(json, csv))


list_options = option_groups.of(_place_list, "wanted")
"""Gives a command the options of lists; its parameter ``wanted`` gets the :class:`PlaceList`."""


def project(ctx: typer.Context, workspace_name: str, project_name: str) -> _workspace.Project:
    """Raises NotFoundException with the nearest name."""
    return state(ctx).workspaces.get_workspace(workspace_name).get_project(project_name)


def project_id(shared: State, workspace_name: str | None, project_name: str | None) -> int | None:
    """The project that both options name; None: neither is given. Raises CliError for one of them."""
    if workspace_name is None and project_name is None:
        return None
    if workspace_name is None or project_name is None:
        raise CliError(
            "give --workspace-name and --project-name together: a project's name is known in its workspace"
        )
    return shared.workspaces.get_workspace(workspace_name).get_project(project_name).id


def say_contents(name: str, found: Mapping[str, Any]) -> None:
    """Says what goes with a workspace or project, and what stands in the way."""
    size = f.size(found["checkpointBytes"])
    parts = [counted(found["experiments"], "experiment")]
    parts.append(f"{counted(found['checkpoints'], 'checkpoint')} ({size})")
    if "models" in found:
        parts = [
            counted(found["projects"], "project"),
            *parts,
            *(counted(found[key], key.removesuffix("s")) for key in ("pipelines", "templates")),
            f"{counted(found['tasks'], 'task')} that ended",
        ]
    talk(f"With {name} go: {', '.join(parts)}.")
    running = found["running"] + found.get("runningTasks", 0)
    if running:
        talk(f"warning: {running} of its experiments and tasks have not ended: it is refused then")
    if found.get("models"):
        talk(
            f"warning: {counted(found['models'], 'model')} in it: det model move NAME -w WORKSPACE"
        )


def wait_until_deleted(one: _workspace.Workspace | _workspace.Project, noun: str) -> None:
    """Prints that it is deleted. Raises CliError with the reason if that failed."""
    from determined.common.api import errors

    try:
        if one.wait_until_deleted():
            talk(f"deleted {noun} {one.name!r}")
            return
    except errors.DeleteFailedException as error:
        raise CliError(error.message) from error
    talk(
        f"{noun} {one.name!r} is not deleted yet; check that an agent is running to delete its files "
        "(det a list)"
    )
