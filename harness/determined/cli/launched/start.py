"""From the options of the command line to a launched task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.options import Includes, Overrides
from determined.cli.arguments.places import project_id
from determined.cli.errors import CliError, talk
from determined.cli.launched.publishing import with_ports
from determined.cli.state import State

if TYPE_CHECKING:
    from determined.common.wire.kinds import TaskKind
    from determined.expconf.tasks import TaskConfig
    from determined.experimental._task import Task

__all__ = [
    "ConfigFile",
    "Context",
    "Detach",
    "Includes",
    "NoBrowser",
    "Overrides",
    "Publish",
    "Template",
    "Volumes",
    "Workspace",
    "configuration",
    "place",
    "send",
]

ConfigFile = Annotated[
    Path | None, typer.Option("--config-file", help="YAML file with the configuration")
]
Volumes = Annotated[
    list[str] | None,
    typer.Option(
        "-v",
        "--volume",
        help="mount a directory of the agent's machine into the container; may be repeated",
        metavar="HOST:CONTAINER",
    ),
]
Context = Annotated[
    Path | None,
    typer.Option("-c", "--context", help="directory whose contents are sent along", metavar="DIR"),
]
Workspace = Annotated[
    str | None, typer.Option("-w", "--workspace-name", help="workspace of the task", metavar="NAME")
]
Template = Annotated[
    str | None, typer.Option("--template", help="take fields that are not set from this template")
]
Publish = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--publish",
        help="make a port of the task a port of this machine while det runs; may be repeated",
        metavar="[LOCAL:]PORT",
    ),
]
NoBrowser = Annotated[
    bool, typer.Option("--no-browser", help="print the address instead of opening it")
]
Detach = Annotated[
    bool, typer.Option("-d", "--detach", help="only print the ID; the task goes on by itself")
]


def place(shared: State, workspace: str | None, project: str | None = None) -> dict[str, int]:
    """The field of the request for the workspace, or for a project of it; empty if neither is named.

    Raises NotFoundException, CliError for a project without its workspace.
    """
    if project is not None and (within := project_id(shared, workspace, project)) is not None:
        return {"projectId": within}
    if workspace is None:
        return {}
    return {"workspaceId": shared.workspaces.get_workspace(workspace).id}


def refuse_unattended(publish: list[str] | None, detach: bool) -> None:
    """Says why both options do not go together."""
    if publish and detach:
        raise CliError(
            "--publish: its ports end with det, so leave -d out; of a task that runs: python -m"
            " determined.cli.tunnel MASTER ID:PORT --listen PORT"
        )


def configuration(
    config_file: Path | None,
    overrides: Iterable[str] | None,
    volumes: Iterable[str] | None,
    entrypoint: Sequence[str] = (),
    *,
    kind: str = "CommandConfig",
    ports: Sequence[int] = (),
) -> dict[str, Any]:
    """The configuration to send. What comes from files and options is checked here, where lines are known.

    ``kind``: the class in :mod:`determined.expconf.tasks`. ``ports``: of the task, to be reached by tunnels.
    Raises ConfigError, CliError.
    """
    chosen, mounts = list(overrides or ()), [_mount(one) for one in volumes or ()]
    if config_file is None and not chosen and not mounts and not ports:
        # Nothing can be wrong, and the checks take longer to import than a short command runs.
        return {"entrypoint": list(entrypoint)} if entrypoint else {}
    from dataclasses import replace

    from determined import expconf
    from determined.expconf import tasks

    document = expconf.read_yaml(config_file) if config_file is not None else expconf.Document({})
    document = expconf.apply_overrides(document, chosen)
    data = document.data
    if mounts:
        data = {**data, "bind_mounts": [*(data.get("bind_mounts") or ()), *mounts]}
    if ports:
        data = with_ports(data, ports)
    if entrypoint:
        own = data.get("entrypoint")
        if own and own != list(entrypoint):
            raise CliError(
                f"the configuration has an entrypoint already ({own!r}): leave one of the two out"
            )
        data = {**data, "entrypoint": list(entrypoint)}
    root: type[TaskConfig] = getattr(tasks, kind)
    expconf.check_task(replace(document, data=data), root)
    return data


def _mount(text: str) -> dict[str, str]:
    host, colon, container = text.partition(":")
    if not (host and colon and container):
        raise CliError(f"--volume {text!r}: write HOST:CONTAINER, two directories")
    return {"host_path": host, "container_path": container}


def send(
    shared: State,
    noun: TaskKind,
    config: dict[str, Any],
    context: Path | None,
    includes: Iterable[Path] | None,
    template: str | None = None,
    *,
    workspace: str | None = None,
    project: str | None = None,
    **fields: Any,
) -> Task:
    """Launches the task in the workspace and project of these names, with further ``fields`` of its kind;
    prints the service's warnings."""
    fields |= place(shared, workspace, project)
    if template is not None:
        fields["templateName"] = template
    task = shared.tasks.launch_task(noun, config, context, includes or (), **fields)
    for warning in task.warnings:
        talk(f"warning: {warning}")
    return task
