"""Messages of agents: registration, requests for work, claims."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from determined.common.wire.legs import LegSpec
from determined.common.wire.message import Message, checked
from determined.common.wire.times import HEARTBEAT_S

JUPYTERLAB, TENSORBOARD, SSHD = "jupyterlab", "tensorboard", "sshd"
PROGRAMS = (JUPYTERLAB, TENSORBOARD, SSHD)
"""Programs that this package does not bring: of notebooks, TensorBoards and shells."""
MOUNTS = "mounts"
"""What ``bind_mounts`` and ``shm_size`` need of the kernel, where tasks are processes of the machine."""


@checked
@dataclass(frozen=True, slots=True)
class Device(Message):
    """The device of a slot: ``type`` as in the agent's ``slot_type``, ``uuid`` of a GPU."""

    type: str = ""
    uuid: str = ""
    brand: str = ""


@checked
@dataclass(frozen=True, slots=True)
class Slot(Message):
    """One slot of an agent. ``draining``: it gets no new work, because it is about to go. ``machine``: the
    name of its machine, from an agent that stands for several; None: the agent has one machine, or cannot
    say.
    """

    id: int
    device: Device = field(default_factory=Device)
    draining: bool = False
    machine: str | None = None


@checked
@dataclass(frozen=True, slots=True)
class ContainerRights(Message):
    """What an agent gives containers of tasks whose owner is not an administrator (``security.containers`` of
    its settings, and its part of the cluster's storage). ``is_root``: processes of containers are the
    machine's root unless the owner's link names an account. ``in_pod``: its containers are pods' of
    Kubernetes.
    """

    capabilities: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    host_paths: list[str] = field(default_factory=list)
    is_root: bool = False
    pod_fields: list[str] = field(default_factory=list)
    in_pod: bool = False


@checked
@dataclass(frozen=True, slots=True)
class Registration(Message):
    """The registration of an agent that has started.

    ``session`` is its own new id, ``version`` its release, ``wire`` its
    :data:`~determined.common.wire.version.VERSION`. ``allocations``: those whose supervisors are alive.
    ``worker_type``: the type of its work pool in Prefect. ``labels``: what experiments may ask for.
    ``lacks``: of :data:`JUPYTERLAB`, :data:`TENSORBOARD` and :data:`SSHD` those that are not installed where
    its tasks run, each with what installs it; :data:`MOUNTS`, with the kernel's reason; of tasks in
    containers, nothing.
    ``containers``: None of an agent that starts none, or whose release does not say. ``address``: where the
    service reaches ports of its tasks, loopback on the service's own machine; empty if it does not say.
    """

    session: UUID
    resource_pool: str = "default"
    host: str = ""
    version: str = ""
    wire: int = 0
    slot_type: str = "cpu"
    slots: list[Slot] = field(default_factory=list)
    allocations: list[str] = field(default_factory=list)
    worker_type: str = "determined-process"
    labels: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, str] = field(default_factory=dict)
    containers: ContainerRights | None = None
    address: str = ""


@checked
@dataclass(frozen=True, slots=True)
class Registered(Message):
    """The answer. ``kill``: allocations whose processes must die; ``wire``: the service's version.

    ``takes_signed``: the service knows the tokens of :mod:`determined.common.wire.serving`. One of the
    release before does not, so runs need the agents' own token there.
    """

    cluster_id: str
    kill: list[str]
    heartbeat_s: float = HEARTBEAT_S
    wire: int = 0
    takes_signed: bool = False


@checked
@dataclass(frozen=True, slots=True)
class WorkRequest(Message):
    """A request for work, which is the agent's heartbeat too.

    ``running``: allocations that the agent has started and not yet reported as ended. ``prefect_poll_seq``:
    the last number that it received, see :class:`Work`. ``experiments``: those of which it keeps something
    until they have ended. ``package_bytes``: what these have installed, by their numbers as texts, and what
    running allocations have, that share nothing with others, by their ids;
    ``programs``: the :data:`PROGRAMS` in :attr:`Registration.lacks`, as people install them while the agent
    runs. None: as it was said last.
    """

    session: UUID
    running: list[str] = field(default_factory=list)
    prefect_poll_seq: int = -1
    timeout_s: float = HEARTBEAT_S
    wire: int = 0
    experiments: list[int] = field(default_factory=list)
    package_bytes: dict[str, int] | None = None
    programs: dict[str, str] | None = None


@checked
@dataclass(frozen=True, slots=True)
class Work(Message):
    """Work for an agent. When ``prefect_poll_seq`` has changed, the agent asks Prefect for runs at once.

    ``ended``: those of :attr:`WorkRequest.experiments` that have ended, or that nobody knows (any more).
    ``doors``: allocations whose supervisors are to be rung, to ask for their doors.
    """

    launch: list[LegSpec]
    kill: list[str]
    prefect_poll_seq: int
    ended: list[int] = field(default_factory=list)
    doors: list[str] = field(default_factory=list)


@checked
@dataclass(frozen=True, slots=True)
class AgentState(Message):
    """The facts about an agent that it sends again when they have changed. ``session``: that of its
    registration. ``slots``: all that it has now. ``waiting``: of the legs that it was told to launch and that
    do not run yet, those that wait for something, and for what in words. ``leaving``: the legs whose machine
    goes away, and why. ``machines``: of an agent whose cluster chooses the machines, the machine of each leg
    that has one.
    """

    session: UUID
    slots: list[Slot] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    leaving: dict[str, str] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)


@checked
@dataclass(frozen=True, slots=True)
class SignOff(Message):
    """An agent that was told to end takes no more work. ``session``: that of its registration."""

    session: UUID


@checked
@dataclass(frozen=True, slots=True)
class TrialClaim(Message):
    """The request for a trial's waiting leg, from a Prefect worker that executes the trial's run itself."""

    flow_run_id: UUID
    agent_id: str = "prefect-worker"
