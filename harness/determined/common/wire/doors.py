"""A door into a task that runs: what the service, its supervisor, the process beside it and `det` agree on.

`det exec` asks the service for the door of one node of a task. The node's agent rings its supervisor, which
opens a port, tells the service, and starts one process (:data:`PROGRAM`) for each connection to it. What is
said over a connection are the frames of :mod:`determined.common.wire.shells`; the first one is a ``HELLO``
with a :class:`Hello` and the door's secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from determined.common.wire.message import Message, checked

PROGRAM = "determined.exec.door"
STACKS = "determined.exec.stacks"
"""Modules that run beside the task's program: one for each connection, and what `det trial dump` starts."""

HELLO = "DET_DOOR_HELLO"
WORK_DIR = "DET_DOOR_WORK_DIR"
SUPERVISOR = "DET_DOOR_SUPERVISOR"
MAIN = "DET_DOOR_MAIN"
RUN_DIR = "DET_DOOR_RUN_DIR"
"""Variables of the process beside the task's: the client's first frame, where the task's program started, the
process whose descendants the task's processes are (missing in a container, where all are), the task's own
process with its words in JSON (a fork has those of its parent), and the task's ``DET_RUN_DIR``."""

BELL = "bell"
"""The pipe in an allocation's directory by which the agent tells a supervisor to ask for its door."""

MOST_SESSIONS = 16
"""Connections to one node at a time."""
IDLE_SECONDS = 60.0
"""A door that nobody uses is closed after so long."""
OPEN_SECONDS = 20.0
"""So long the service waits for an agent to open a door."""
MOST_WORDS = 1_000
MOST_BYTES = 60_000
"""Words, and bytes of a whole first frame: it has to fit a frame, and a variable."""


def port_name(node: int) -> str:
    """The end of the door's address: ``/proxy/<task>:<name>``."""
    return f"door-{node}"


@checked
@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The program to run. ``argv``: it and its arguments, or nothing for a shell. ``tty``: on a terminal with
    this number of rows and columns; else its output and its errors come apart. ``banner``: a terminal says
    first which processes the task has."""

    argv: list[str] = field(default_factory=list)
    tty: bool = False
    term: str = ""
    rows: int = 24
    columns: int = 80
    banner: bool = False


@checked
@dataclass(frozen=True, slots=True)
class DoorOrder(Message):
    """The answer to a supervisor that was rung: whether its door is wanted, and the hash of the secret.

    ``gate_key``: of the gate (:mod:`determined.common.wire.gate`) before the door, in hex; empty from a
    service of the release before.
    """

    wanted: bool
    secret_hash: str = ""
    gate_key: str = ""


@checked
@dataclass(frozen=True, slots=True)
class DoorState(Message):
    """The report that a supervisor's door is open at an address, or closed. ``secret_hash``: which one;
    ``behind``: its own number, where a gate (:mod:`determined.common.wire.gate`) is at ``port``; ``problem``:
    why it cannot be opened, in words.
    """

    node: int
    secret_hash: str
    open: bool
    address: str = ""
    port: int = 0
    behind: int = 0
    problem: str = ""
