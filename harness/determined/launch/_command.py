"""Shared parts of the launch layers that wrap other launchers (deepspeed, horovod)."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from determined._info import ClusterInfo, get_cluster_info
from determined.launch._fail import fail
from determined.launch._workers import TRIAL_MODULE


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """(options, the script and its arguments): only a ``--`` *before* the script counts."""
    if arguments and arguments[0].startswith("-") and "--" in arguments:
        at = arguments.index("--")
        return arguments[:at], arguments[at + 1 :]
    return [], arguments


def of_trial_class(arguments: list[str]) -> list[str] | None:
    """The command for ``--trial MODULE:CLASS`` (or ``--trial=…``); None for anything else."""
    if not arguments or arguments[0].partition("=")[0] != "--trial":
        return None
    spec = arguments[0].partition("=")[2] or "".join(arguments[1:2])
    return [sys.executable, "-m", TRIAL_MODULE, spec]


def slots_of_one_machine(launcher: str) -> int:
    """The number of processes of the trial. Raises SystemExit off the cluster, and when the trial has
    several machines.
    """
    info: ClusterInfo | None = get_cluster_info()
    if info is None:
        fail(
            f"determined.launch.{launcher} starts trials on a cluster; off it, use {launcher}'s own"
        )
    if len(info.container_addrs) > 1:
        fail(
            f"determined.launch.{launcher} on {len(info.container_addrs)} machines needs ssh between "
            "them, which containers do not offer in this release; use "
            "determined.launch.torch_distributed, which does not need ssh"
        )
    return max(len(info.slot_ids), 1)


def find_program(program: str, package: str) -> str:
    """The path of ``program`` of the installed ``package``. Raises SystemExit."""
    if importlib.util.find_spec(package) is None:
        fail(f"{package} is not installed: pip install {package}")
    beside = str(Path(sys.executable).parent)
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), beside]))
    if found is None:
        fail(
            f"{package} is installed, but its program {program!r} is not on the PATH; add its "
            "folder to PATH"
        )
    return found


def wrapped(rank_variables: str, command: list[str]) -> list[str]:
    """``command`` wrapped so that its lines have its rank in front; one of the variables holds the rank."""
    return [
        *(sys.executable, "-m", "determined.launch.wrap_rank", rank_variables, "--"),
        *([sys.executable, *command] if command[0].endswith(".py") else command),
    ]


def become(command: list[str]) -> NoReturn:
    """Replace this process by the program. Raises SystemExit when there is no such program."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}")
