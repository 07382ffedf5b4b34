"""The order to start a leg of a task, and what the leg's supervisor reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict
from uuid import UUID

from determined.common.wire.message import Message, checked


@checked
@dataclass(frozen=True, slots=True)
class CheckpointFacts(Message):
    """The data to verify a checkpoint with. ``storage``: its storage, if that is not the experiment's."""

    resources: dict[str, int]
    checksums: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None


@checked
@dataclass(frozen=True, slots=True)
class AgentUser(Message):
    """The account of the agent's machine that a task's processes run as.

    The fields of ``agentUserGroup`` and of ``security.default_task``, of which either number or name may be
    missing. Without a group: the account's own.
    """

    uid: int | None = None
    gid: int | None = None
    user: str | None = None
    group: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class TaskDefaults(Message):
    """The ``task_container_defaults`` that no experiment's configuration has a field for.

    ``network_mode`` and ``work_dir`` are of containers; ``startup_hook``: shell commands.
    """

    network_mode: str | None = None
    work_dir: str | None = None
    startup_hook: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class Granted(Message):
    """What the task's container may have, whatever the agent's settings allow: everything, because its owner
    is an ``administrator``, and what the cluster configuration gives all tasks.
    """

    administrator: bool = False
    capabilities: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    host_paths: list[str] = field(default_factory=list)
    pod_fields: list[str] = field(default_factory=list)


FREE_PORTS = range(2600, 3501)
"""Ports of a machine that tasks get: Determined's own range for what people open in a browser."""


@checked
@dataclass(frozen=True, slots=True)
class Port(Message):
    """A port of a task's process that is reached through the service's proxy (docs/inside/proxy.md).

    ``name``: what its address ends in, ``/proxy/<task>:<name>``. ``port``: 0 in an order is any free one of
    the agent's :data:`FREE_PORTS`; in a report it is the one that the service connects to. ``env``: the
    variable that tells the process the port. ``tcp``: it speaks no HTTP. ``unauthenticated``: for everybody
    who reaches the service; ``shared``: for every user who is logged in; else for the task's owner and
    administrators. ``default``: the task's own address, ``/proxy/<task>``, is this port's. ``keep_prefix``:
    the process is asked for the whole path, ``/proxy/<task>/…``; else for what comes after it.
    ``ready_path``: it is ready once it answers this path without a server error; else once it listens.
    ``behind``: in a report, the process' own number, where a gate (:mod:`determined.common.wire.gate`) is at
    ``port``. ``gate_key``: in an order, the key of that gate, in hex; empty in one of the release before.
    """

    name: str
    port: int = 0
    env: str = ""
    tcp: bool = False
    unauthenticated: bool = False
    shared: bool = False
    default: bool = False
    keep_prefix: bool = False
    ready_path: str = ""
    behind: int = 0
    gate_key: str = ""


@checked
@dataclass(frozen=True, slots=True)
class PortState(Message):
    """The report that a port can be reached (any more). ``waits_for``: why not, in words."""

    name: str
    ready: bool
    waits_for: str = ""


def leg_id_of(allocation_id: str, node: int, nodes: int) -> str:
    """The name of a node's leg between agent and service: an agent may have several nodes of one gang."""
    return f"{allocation_id}.n{node}" if nodes > 1 else allocation_id


def of_leg_id(leg_id: str) -> tuple[str, int | None]:
    """The allocation of a leg, and its node; None: it is no gang's, or of the release before."""
    allocation_id, _, node = leg_id.rpartition(".n")
    return (allocation_id, int(node)) if allocation_id and node.isdecimal() else (leg_id, None)


@checked
@dataclass(frozen=True, slots=True)
class LegSpec(Message):
    """The order to start one allocation of one task.

    ``entrypoint`` is as in the experiment configuration. ``env`` holds ``DET_*`` variables that only the
    service knows, ``environment_variables`` the user's ``KEY=VALUE`` items. ``checkpoint`` describes the
    ``latest_checkpoint``. ``agent_user`` is the account linked to the owner; None: what the agent's
    configuration says. ``defaults``: those in force when it starts. ``nodes``: how many agents the
    allocation is on; this one is number ``node``, and ``slot_ids`` are its part. ``mlflow``: the service
    serves MLflow, so that the trial's script may log to its run by MLflow's functions. ``ports``: those of
    its process (of a gang its first node's) that are reached through the service. ``work_dir``: where
    the process starts, instead of the directory with its files; it may name ``$DET_USER`` and
    ``$AGENT_USER``. ``granted``: an order without it is of a service that grants nothing.
    ``leg_id``: what agent and service call this leg, see :func:`leg_id_of`; empty in an order of the release
    before, see :attr:`name`. ``supervisor_token``: what the supervisor reports with
    (:mod:`determined.common.wire.serving`); empty in an order of the release before. ``machine``: the machine
    of ``slot_ids``, where the scheduler counts the leg; None: the agent names no machines, or there are no
    slots. ``avoid``: machines of the agent on which the leg must not run, because they are disabled or
    because of log policies.
    ``priority``: the task's, else its pool's; None in an order of the release before.
    """

    allocation_id: str
    task_id: str
    entrypoint: str | list[str]
    session_token: str
    cluster_id: str
    task_type: str = "TRIAL"
    experiment_id: int | None = None
    trial_id: int | None = None
    run_id: int = 1
    flow_run_id: UUID | None = None
    slot_ids: list[int] = field(default_factory=list)
    resource_pool: str = "default"
    model_def_hash: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    hparams: dict[str, Any] = field(default_factory=dict)
    trial_seed: int = 0
    latest_checkpoint: str | None = None
    steps_completed: int = 0
    checkpoint: CheckpointFacts | None = None
    owner: str = "determined"
    cluster_name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    environment_variables: list[str] = field(default_factory=list)
    agent_user: AgentUser | None = None
    defaults: TaskDefaults = field(default_factory=TaskDefaults)
    node: int = 0
    nodes: int = 1
    mlflow: bool = False
    ports: list[Port] = field(default_factory=list)
    work_dir: str | None = None
    granted: Granted = field(default_factory=Granted)
    supervisor_token: str = ""
    leg_id: str = ""
    machine: str | None = None
    avoid: list[str] = field(default_factory=list)
    priority: int | None = None

    @property
    def name(self) -> str:
        """The name of this leg between agent and service: fit for a file's name, and one agent's own."""
        return self.leg_id or self.allocation_id

    def user_environment(self) -> dict[str, str]:
        """``environment_variables`` as a dict; an item without ``=`` is the empty string."""
        pairs = (item.partition("=") for item in self.environment_variables)
        return {name: value for name, _, value in pairs if name}


@checked
@dataclass(frozen=True, slots=True)
class Started(Message):
    """The report that the process runs, and where. ``node``: which one of a gang it is; ``agent_id``: where
    that is, which is all that the release before says. ``ports``: those of the order, at ``address``.
    ``start_id``: as in :class:`Starting`; empty from the release before.
    """

    pid: int | None = None
    host: str | None = None
    agent_id: str | None = None
    address: str = ""
    ports: list[Port] = field(default_factory=list)
    node: int | None = None
    start_id: str = ""


@checked
@dataclass(frozen=True, slots=True)
class Starting(Message):
    """The question of a supervisor, before it runs any of the user's code, whether its start is the first.

    ``start_id`` names one start of a leg: a pod's uid, or a random one. ``node``: of a gang.
    """

    start_id: str
    node: int | None = None


@checked
@dataclass(frozen=True, slots=True)
class Notice(Message):
    """The report that the machine under a leg goes away in ``seconds`` (None: nobody knows). ``reason``: why,
    in words.

    ``node``, ``start_id``: as in :class:`Started`.
    """

    reason: str
    seconds: float | None = None
    node: int | None = None
    start_id: str = ""


def going_away(reason: str) -> str:
    """The end of a leg whose machine went away, in words."""
    return f"its machine is going away: {reason}"


class ExitKind(enum.StrEnum):
    """The end of a process, as its supervisor saw it."""

    EXITED = "exited"
    FAILED_TO_START = "failed_to_start"
    """The user's files or configuration must change before another try can help."""
    INFRASTRUCTURE = "infrastructure"
    """The training code did not cause it; it does not count as a restart."""
    UNPLACED = "unplaced"
    """The process never began, because the agent's cluster had no room for it; ``reason`` has the cluster's
    words. The leg goes back to the queue. It counts neither as a restart nor as a loss."""


@checked
@dataclass(frozen=True, slots=True)
class Exited(Message):
    """The report that the process is gone. ``reason``: in words, if more is known than the code or the
    signal. ``node``, ``agent_id``: of a gang, as in :class:`Started`. ``start_id``: empty from an agent, too,
    which knows what it started. ``leaving``: why the machine goes away, as far as the supervisor knows, and
    ``reason`` says what followed; None: it does not go, or the process ended in good order.
    """

    exit_code: int | None = None
    signal: int | None = None
    kind: ExitKind = ExitKind.EXITED
    reason: str | None = None
    agent_id: str | None = None
    node: int | None = None
    start_id: str = ""
    leaving: str | None = None


# Of log lines there are millions: they are dicts on both sides.
class LogLine(TypedDict):
    """One line as it was printed, its newline included; ``t`` in seconds since the epoch."""

    t: float
    stdtype: str
    level: str | None
    rank: int | None
    source: str
    log: str


class LogOwner(TypedDict):
    """Whose lines they are. ``node``: of a gang; one of the release before says only its agent. ``machine``:
    where the supervisor runs, if its agent stands for several machines, which the agent does not choose; one
    of the release before does not say it, and the machine of its slots counts.
    """

    task_id: str
    allocation_id: str
    agent_id: str
    node: NotRequired[int]
    machine: NotRequired[str]


class LogBatch(LogOwner):
    """Lines of a ``stream`` (a UUID); the service stores a number ``seq`` of it once."""

    stream: str
    seq: int
    lines: list[LogLine]


@checked
@dataclass(frozen=True, slots=True)
class DamagedCheckpoint(Message):
    """The report that the checkpoint to start from is damaged. ``reason``: why, in words."""

    uuid: UUID
    reason: str


@checked
@dataclass(frozen=True, slots=True)
class StartFrom(Message):
    """The checkpoint that the trial starts from instead, if any."""

    latest_checkpoint: str | None = None
    steps_completed: int = 0
    checkpoint: CheckpointFacts | None = None
