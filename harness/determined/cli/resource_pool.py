"""``det resource-pool`` (``det rp``)"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import CliError, talk
from determined.cli.groups import group
from determined.cli.output import render
from determined.cli.output.render import Column, Record
from determined.cli.state import state

if TYPE_CHECKING:
    from determined.experimental._workspace import ResourcePool

app = group("Resource pools: groups of agents, and how their slots are given out.", default="list")


def _scheduler(record: Record) -> str:
    name = str(record.get("schedulerType") or "").removeprefix("SCHEDULER_TYPE_").lower()
    # Determined's enumeration has no name for the one that serves requests as they come.
    return "first_in_first_out" if name in ("", "unspecified") else name


def _fitting(record: Record) -> str:
    return str(record.get("schedulerFittingPolicy") or "").removeprefix("FITTING_POLICY_").lower()


def _default(record: Record) -> str:
    kinds = (("compute", "defaultComputePool"), ("aux", "defaultAuxPool"))
    return ", ".join(word for word, key in kinds if record.get(key))


def _used(record: Record) -> str:
    return f"{record.get('slotsUsed')}/{record.get('slotsAvailable')}"


def _preemption(record: Record) -> bool | None:
    return _priority(record).get("preemption")


def _priority(record: Record) -> dict[str, Any]:
    return (record.get("details") or {}).get("priorityScheduler") or {}


POOLS = (
    Column("Name", "name"),
    Column("Default For", _default),
    Column("Agents", "numAgents"),
    Column("Slots Used", _used),
    Column("Scheduler", _scheduler, spare=5),
    Column("Fitting Policy", _fitting, spare=9),
    Column("Description", "description", spare=8),
)
DETAILS = (
    *POOLS,
    Column("Preemption", _preemption),
    Column("Default Priority", lambda record: _priority(record).get("defaultPriority")),
    Column("Slots Per Agent", "slotsPerAgent"),
    Column("Tasks Without Slots", "auxContainersRunning"),
    Column("At Most Per Agent", "auxContainerCapacityPerAgent"),
)


@app.command("list|ls")
def list_pools(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List the resource pools of the cluster."""
    render.show(
        POOLS, state(ctx).cluster.list_resource_pools(), chosen(json, csv), what="resource pools"
    )


@app.command("describe")
def describe(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="POOL", help="name of the resource pool")],
    json: Json = False,
    csv: Csv = False,
) -> None:
    """Show one resource pool: its agents, its slots and its scheduler."""
    pools = state(ctx).cluster.list_resource_pools()
    found = [pool for pool in pools if pool["name"] == name]
    if not found:
        from determined.expconf.problems import nearest

        names = [pool["name"] for pool in pools]
        meant = nearest(name, names)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise CliError(f"there is no resource pool {name!r}{hint} (allowed: {', '.join(names)})")
    render.show(DETAILS, found, chosen(json, csv), document=found[0])


bindings = group("Workspaces to which a pool is bound: only these may use it.")
Pool = Annotated[str, typer.Argument(metavar="POOL", help="name of the resource pool")]
Names = Annotated[
    list[str], typer.Argument(metavar="WORKSPACE_NAME", help="names of the workspaces")
]


@bindings.command("add")
def add(ctx: typer.Context, pool_name: Pool, workspace_names: Names) -> None:
    """Bind a pool to further workspaces. For administrators."""
    _pool(ctx, pool_name).add_bindings(workspace_names)
    talk(f"bound resource pool {pool_name!r} to {', '.join(workspace_names)}")


@bindings.command("remove")
def remove(ctx: typer.Context, pool_name: Pool, workspace_names: Names) -> None:
    """Unbind a pool from workspaces; bound to none, it is open to all. For administrators."""
    _pool(ctx, pool_name).remove_bindings(workspace_names)
    talk(f"unbound resource pool {pool_name!r} from {', '.join(workspace_names)}")


@bindings.command("replace")
def replace(ctx: typer.Context, pool_name: Pool, workspace_names: Names) -> None:
    """Bind a pool to these workspaces alone. For administrators."""
    _pool(ctx, pool_name).replace_bindings(workspace_names)
    talk(f"bound resource pool {pool_name!r} to {', '.join(workspace_names)} alone")


@bindings.command("list-workspaces")
def list_workspaces(
    ctx: typer.Context, pool_name: Pool, json: Json = False, csv: Csv = False
) -> None:
    """List the workspaces to which a pool is bound; none: it is open to all."""
    found = [{"name": name} for name in _pool(ctx, pool_name).list_workspaces()]
    render.show((Column("Workspace", "name"),), found, chosen(json, csv), what="workspaces")


def _pool(ctx: typer.Context, name: str) -> ResourcePool:
    from determined.experimental._workspace import ResourcePool

    return ResourcePool(state(ctx).session, name)


app.add_typer(bindings, name="bindings")
