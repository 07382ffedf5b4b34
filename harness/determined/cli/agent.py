"""``det agent`` (``det a``)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from determined.cli import completion
from determined.cli.arguments.options import Csv, Json, chosen
from determined.cli.errors import CliError
from determined.cli.groups import group
from determined.cli.output import format as f
from determined.cli.output import render
from determined.cli.output.render import Column, Record
from determined.cli.printing import talk
from determined.cli.state import state
from determined.common import installation

if TYPE_CHECKING:
    from determined.experimental._cluster import Agent

app = group("Agents: the machines that run trials.", default="list")


def _slots(record: Record) -> str:
    slots = list((record.get("slots") or {}).values())
    used = record.get("used", [slot for slot in slots if slot.get("container")])
    return f"{len(used)}/{len(slots)}"


def _labels(record: Record) -> str:
    return ", ".join(f"{key}={value}" for key, value in (record.get("labels") or {}).items())


AGENTS = (
    Column("Agent ID", "id"),
    Column("State", lambda record: (record.get("state") or "").removeprefix("STATE_")),
    Column("Last Heartbeat", f.field("lastHeartbeat", f.time)),
    Column("Version", "version", spare=8),
    Column("Registered", f.field("registeredTime", f.time), spare=9),
    Column("Slots Used", _slots),
    Column("Resource Pool", lambda record: ", ".join(record.get("resourcePools") or ())),
    Column("Labels", _labels, spare=5),
    Column("Enabled", "enabled", spare=3),
    Column("Draining", "draining", spare=6),
    Column("Addresses", lambda record: ", ".join(record.get("addresses") or ()), spare=4),
)


@app.command("list|ls")
def list_agents(ctx: typer.Context, json: Json = False, csv: Csv = False) -> None:
    """List the agents, also those of which nothing is heard (SILENT) and those that have ended (ENDED).

    Of an agent that stands for several machines each is a line, AGENT_ID/MACHINE.
    """
    agents = [one.document for one in state(ctx).cluster.list_agents()]
    lines = [line for one in agents for line in _lines(one)]
    render.show(AGENTS, lines, chosen(json, csv), document=agents, what="agents")


def _lines(agent: Record) -> list[Record]:
    # A service of the release before knows no machines.
    machines = agent.get("machines") or {}
    if not machines:
        return [agent]
    lines: list[Record] = []
    for name, machine in machines.items():
        every = (agent.get("slots") or {}).items()
        slots = {key: slot for key, slot in every if slot["machine"] == name}
        # Cordoned in the agent's cluster, or drained here.
        drains = bool(slots) and all(slot["draining"] for slot in slots.values())
        lines.append(
            {
                **agent,
                "id": f"{agent['id']}/{name}",
                "slots": slots,
                "used": [slot for _, slot in every if _runs_on(slot) == name],
                "enabled": agent.get("enabled") and machine["enabled"],
                "draining": agent.get("draining") or machine["draining"] or drains,
            }
        )
    return lines


def _runs_on(slot: Record) -> str | None:
    """The machine of what holds the slot: the agent's cluster may have chosen another one than the slot's."""
    container = slot.get("container")
    return container and (container.get("machine") or slot["machine"])


AgentId = Annotated[str, typer.Argument(metavar="AGENT_ID", autocompletion=completion.agents)]
OneAgent = Annotated[
    str | None, typer.Argument(metavar="[AGENT_ID]", autocompletion=completion.agents)
]
AllAgents = Annotated[bool, typer.Option("--all", help="every agent")]
Drain = Annotated[bool, typer.Option("--drain", help="let what runs there finish")]


@app.command("enable")
def enable(ctx: typer.Context, agent_id: OneAgent = None, every: AllAgents = False) -> None:
    """Give the agent, or one of its machines (AGENT_ID/MACHINE), work again."""
    agents, machine = _chosen(ctx, agent_id, every)
    for agent in agents:
        if machine:
            agent.enable_machine(machine)
        else:
            agent.enable()
        talk(f"{_called(agent, machine)} is enabled")


@app.command("disable")
def disable(
    ctx: typer.Context, agent_id: OneAgent = None, every: AllAgents = False, drain: Drain = False
) -> None:
    """Give the agent, or one of its machines (AGENT_ID/MACHINE), no more work.

    What runs there starts again elsewhere, unless --drain.
    """
    agents, machine = _chosen(ctx, agent_id, every)
    for agent in agents:
        if machine:
            agent.disable_machine(machine, drain)
        else:
            agent.disable(drain)
        talk(f"{_called(agent, machine)} is disabled" + (", and drains" if drain else ""))


@app.command("remove|rm")
def remove(
    ctx: typer.Context,
    agent_ids: Annotated[
        list[str], typer.Argument(metavar="AGENT_ID", autocompletion=completion.agents)
    ],
) -> None:
    """Take agents that are gone off the list; what they ran starts again elsewhere. For administrators."""
    for one in agent_ids:
        reference(ctx, one).remove()
        talk(f"agent {one} is removed")


def reference(ctx: typer.Context, agent_id: str) -> Agent:
    """The SDK's object for an agent, without a request to the service."""
    from determined.experimental._cluster import Agent

    return Agent(state(ctx).session, agent_id)


def _chosen(ctx: typer.Context, agent_id: str | None, every: bool) -> tuple[list[Agent], str]:
    """The agents, and the machine that is meant; empty: the agents as a whole."""
    if (agent_id is None) != every:
        raise typer.BadParameter("give an AGENT_ID, or --all")
    if agent_id is None:
        return state(ctx).cluster.list_agents(), ""
    name, slash, machine = agent_id.partition("/")
    if slash and not (name and machine):
        raise typer.BadParameter(f"{agent_id!r} is neither AGENT_ID nor AGENT_ID/MACHINE")
    return [reference(ctx, name)], machine


def _called(agent: Agent, machine: str) -> str:
    return f"machine {agent.id}/{machine}" if machine else f"agent {agent.id}"


STARTER = "determined.agent_start"


@app.command("start")
def start(
    ctx: typer.Context,
    pool: Annotated[str, typer.Option("--pool", help="the resource pool to serve")] = "default",
    kind: Annotated[
        str, typer.Option("--type", metavar="process|docker|kubernetes", help="what trials run in")
    ] = "process",
    slots: Annotated[
        int | None,
        typer.Option("--slots", help="how many slots; default: one per GPU, else per CPU core"),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="all|N", help="fail unless there are GPUs")
    ] = None,
    artificial_slots: Annotated[
        int | None, typer.Option("--artificial-slots", help="so many CPU slots, for tests")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="default: the machine's name and the pool's")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="what experiments may ask for by resources.placement.labels; may be repeated",
        ),
    ] = None,
    task_user: Annotated[
        str | None,
        typer.Option(
            "--task-user",
            metavar="USER[:GROUP]",
            help="the account of this machine that tasks run as (the agent must run as root); default: "
            "the local cluster's, else the agent's own; '': the agent's own",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option("--image", help="of experiments that name none (not with --type process)"),
    ] = None,
    kubernetes: Annotated[
        Path | None,
        typer.Option(
            "--kubernetes",
            metavar="FILE",
            help="YAML or JSON: the section kubernetes of the agent's settings (with --type kubernetes)",
        ),
    ] = None,
    master_inside: Annotated[
        str | None,
        typer.Option(
            "--master-inside",
            metavar="URL",
            help="the service's address in containers and pods, if it is another one there",
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", help="of containers: host, bridge, or a network's name"),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="limit of each trial or other task, such as 8G")
    ] = None,
    capabilities: Annotated[
        list[str] | None,
        typer.Option("--allow-capability", help="what containers may add; may be repeated"),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option("--allow-device", help="what containers may have; may be repeated"),
    ] = None,
    host_paths: Annotated[
        list[str] | None,
        typer.Option("--allow-host-path", help="what root's containers may mount; may be repeated"),
    ] = None,
    harness: Annotated[
        str | None,
        typer.Option(
            "--harness",
            metavar="image|mounted",
            help="whether images have determined, or get it from this machine",
        ),
    ] = None,
) -> None:
    """Run an agent on this machine until it is stopped (Ctrl-C ends its trials; they start again elsewhere).

    It belongs to the local cluster, or to the service at $DET_MASTER whose agent_token is in
    $DET_AGENT_TOKEN.
    """
    from importlib import metadata

    container = {
        "images": dict.fromkeys(("cpu", "cuda"), image) if image else None,
        "network_mode": network,
        "harness": harness,
        "master_url": master_inside,
    }
    rights = {"capabilities": capabilities, "devices": devices, "host_paths": host_paths}
    if kind == "process" and any((*container.values(), *rights.values())):
        raise typer.BadParameter(
            "--image, --network, --harness, --master-inside and --allow-… need --type docker or kubernetes"
        )
    if kind == "kubernetes" and any((network, memory, task_user)):
        raise typer.BadParameter(
            "--network, --memory and --task-user are not for pods: their file --kubernetes has pod_spec and"
            " slot_resources, and accounts are linked to users (det user link-with-agent-user)"
        )
    if kind != "kubernetes" and kubernetes is not None:
        raise typer.BadParameter("--kubernetes needs --type kubernetes")
    if (reason := installation.no_agents_here()) is not None:
        raise CliError(reason)
    more = [kind] if kind in ("docker", "kubernetes") else []
    if (reason := installation.no_platform(*more)) is not None:
        raise CliError(reason)
    points = metadata.entry_points(group=STARTER)
    options = {
        "pool": pool,
        "kind": kind,
        "slots": slots,
        "gpus": gpus,
        "artificial_slots": artificial_slots,
        "name": name,
        "labels": labels or [],
        "task_user": task_user,
        "master": state(ctx).master,
        "container": {key: value for key, value in container.items() if value},
        "limits": {"memory": memory} if memory else {},
        "rights": {key: value for key, value in rights.items() if value},
        "kubernetes": kubernetes,
    }
    try:
        next(iter(points)).load()(options)
    except ValueError as error:
        talk(f"error: {error}")
        raise typer.Exit(1) from None
