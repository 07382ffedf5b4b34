"""Describes the end of a leg in a container, for users."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from typing import Any

from determined.common.wire.legs import ExitKind
from determined_tasks.exit_reason import (
    SHELL_CODES,
    LegResult,
    as_it_said,
    failed_to_start,
    infrastructure,
)

_SETUP = re.compile(
    r"bind source path|invalid mount|mount config|not found in \$PATH|no such file or directory"
    r"|permission denied|unable to find user|invalid (user|capability|CapAdd|CapDrop|shm)|gathering device"
    r"|cap_(add|drop)|is not an absolute path|Duplicate mount",
    re.IGNORECASE,
)
_GPU = re.compile(r"device driver|nvidia", re.IGNORECASE)
_NETWORK = re.compile(r"network \S+ not found", re.IGNORECASE)


NOT_STARTED = 125
"""The exit code of ``docker run`` for a container that the engine failed to start."""


def of_engine(status: int | None, words: str) -> str | None:
    """The reason why the engine failed to start the container, if the configuration is not at fault; else
    None.

    ``status``: of its HTTP answer.
    """
    said = words.strip()
    if _GPU.search(said):
        return (
            f"the engine cannot give the container its GPUs ({said}): install the NVIDIA Container Toolkit on"
            " the agent's machine"
        )
    if _refused(status, said):
        return None
    return f"the container cannot be started: {said}"


def _refused(status: int | None, said: str) -> bool:
    found = _NETWORK.search(said) or _SETUP.search(said)
    return found is not None or (status is not None and 400 <= status < 500)


def not_started(reason: str) -> LegResult:
    """The engine has failed to start the container in several tries: a failure like the process' own."""
    return LegResult(NOT_STARTED, None, ExitKind.EXITED, reason)


def refused(words: str, image: str) -> LegResult:
    """The engine refused to create or start the container as the configuration wants it."""
    said = words.strip()
    if _NETWORK.search(said):
        return failed_to_start(
            f"the container of image {image} cannot be started: {said}; network_mode of the agent's container"
            " settings, or of task_container_defaults in the cluster configuration, names a network that the"
            " agent's machine does not have"
        )
    return failed_to_start(
        f"the container of image {image} cannot be started: {said}; see bind_mounts, resources.devices,"
        " environment.add_capabilities and the entrypoint of the configuration"
    )


def describe(
    state: Mapping[str, Any],
    *,
    image: str,
    command: list[str],
    memory: int | None,
    hook_pending: str | None,
    init_error: str | None,
    machine_is_full: bool,
    told: str | None,
) -> LegResult:
    """The result for the ``State`` of an ended container that nobody stopped.

    ``memory``: its limit in bytes. ``machine_is_full``: the kernel killed a process for want of memory
    while it ran, and not for the container's limit. The others: see :func:`exit_reason.describe`.
    """
    code = int(state["ExitCode"])
    if init_error is not None and code in (126, 127):
        return failed_to_start(f"entrypoint not found in image {image}: {init_error}")
    if state.get("Error") and code in (126, 127, 128):
        return failed_to_start(f"the entrypoint cannot be started: {state['Error']}")
    if hook_pending and code != 0:
        reason = f"{hook_pending} failed with exit code {code}"
        return LegResult(code, None, ExitKind.FAILED_TO_START, reason)
    out_of_memory = _out_of_memory(memory) if state.get("OOMKilled") else None
    if code == 128 + signal.SIGKILL:
        if out_of_memory is None and machine_is_full:
            return infrastructure("killed: the machine is out of memory (137)")
        return LegResult(None, signal.SIGKILL, ExitKind.EXITED, out_of_memory)
    if code != 0 and out_of_memory is not None:
        reason = f"one of its processes was killed: {out_of_memory}"
        return LegResult(code, None, ExitKind.EXITED, reason)
    number = code - 128
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, 15):
        return LegResult(None, number, ExitKind.EXITED, None)
    shell = SHELL_CODES.get(code) if command[0] == "sh" else None
    if shell is not None:
        return LegResult(code, None, ExitKind.EXITED, shell)
    return as_it_said(code, told, command)


def _out_of_memory(limit: int | None) -> str:
    of = "" if limit is None else f" of {limit / (1 << 20):.0f} MiB"
    return f"out of memory, by the limit{of} of its container"
