"""``python3 -m determined.launch.torch_distributed [options --] script.py args…``

Starts the script once per slot of the trial (``--nproc_per_node`` says otherwise), with the environment
that torchrun sets; what each process prints has its rank in front, and when one fails the others are ended.
A Python script is forked from this interpreter, which has imported torch. With options that only torchrun
has (``--rdzv-backend``, ``--max-restarts`` …) it becomes torchrun. With one slot it runs the script in this
process. In each case ``DistributedContext.from_torch_distributed()`` and
``torch.distributed.init_process_group()`` work.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import sys

from determined._info import get_cluster_info
from determined.common import installation
from determined.launch import _command, _ports, _torch_gang, _workers
from determined.launch._fail import fail
from determined.launch._gang import end_like
from determined.launch._workers import TRIAL_MODULE, Program

USAGE = (
    "usage: python3 -m determined.launch.torch_distributed "
    "[TORCHRUN_OPTIONS... --] (--trial MODULE:CLASS | SCRIPT [ARGS...])"
)


def worker_count(options: list[str]) -> tuple[int, bool]:
    """The number of processes that ``options`` ask for on this machine, by default one per slot, and
    whether the options need torchrun. Raises SystemExit.
    """
    count = None
    torchrun = False
    rest = list(options)
    while rest:
        name, given, value = rest.pop(0).lstrip("-").replace("-", "_").partition("=")
        if name not in ("nproc_per_node", "nnodes", "max_restarts"):
            torchrun = torchrun or name != "standalone"
            if not given and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        if not given:
            value = rest.pop(0) if rest else ""
        if name == "nproc_per_node" and value in ("auto", "cpu", "gpu"):
            torchrun = True
        elif name == "nproc_per_node":
            if not value.isdecimal() or int(value) < 1:
                fail(
                    "--nproc_per_node must be a number of processes, auto, cpu or gpu; "
                    f"found {value!r}"
                )
            count = int(value)
        elif value not in {"nnodes": ("1", "1:1"), "max_restarts": ("0",)}[name]:
            torchrun = True
    if count is None:
        info = get_cluster_info()
        count = max(len(info.slot_ids), 1) if info is not None else 1
    return count, torchrun


def set_environment() -> None:
    """The environment that torchrun sets for a single worker."""
    single = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in single.items()})
    os.environ["USE_TORCH_DISTRIBUTED"] = "True"
    os.environ.setdefault("DET_CHIEF_IP", "127.0.0.1")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if "MASTER_PORT" not in os.environ:
        with _ports.reserve() as holder:
            os.environ["MASTER_PORT"] = str(_ports.port_of(holder))


def run(command: list[str], program: Program | None) -> None:
    """Become ``command``: a script or module in this interpreter, anything else by exec."""
    if program is not None and program.as_module:
        sys.argv = program.argv
        runpy.run_module(program.argv[0], run_name="__main__", alter_sys=True)
        return
    if program is not None:
        sys.argv = program.argv
        # As `python3 script.py` would: modules beside the script come first.
        sys.path[0] = str(program.folder)
        runpy.run_path(program.argv[0], run_name="__main__")
        return
    os.execvp(command[0], command)


def main(arguments: list[str]) -> None:
    """Launch the command given by the arguments. Raises SystemExit."""
    options, command = _command.split_arguments(arguments)
    count, needs_torchrun = worker_count(options)
    command = _command.of_trial_class(command) or command
    if not command or command[0].startswith("-"):
        fail(f"no script was given to launch; {USAGE}")
    program = _workers.python_program(command)
    _check(command, program)
    if program is not None or _workers.is_python(command[0]):
        command = _with_this_python(command)
    if needs_torchrun:
        _torch_gang.torchrun(count, options, command)
    if count > 1 or _torch_gang.machines() > 1:
        end_like(_torch_gang.run(count, command, program))
    set_environment()
    if program is not None and program.argv[0] == TRIAL_MODULE:
        from determined.pytorch import _run  # torch takes its time

        return _run.run(program.argv[1])
    return run(command, program)


def _check(command: list[str], program: Program | None) -> None:
    if program is None:
        if not _workers.is_python(command[0]) and shutil.which(command[0]) is None:
            fail(f"there is no program {command[0]!r} on the PATH to launch")
    elif not program.as_module and not os.path.exists(program.argv[0]):  # noqa: PTH110
        fail(f"there is no script {program.argv[0]!r} in {os.getcwd()}")  # noqa: PTH109
    if importlib.util.find_spec("torch") is None:
        fail(f"torch is not installed: {installation.command('torch')}")


def _with_this_python(command: list[str]) -> list[str]:
    return [sys.executable, *(command[1:] if _workers.is_python(command[0]) else command)]


if __name__ == "__main__":
    # Under its real name: __main__ becomes the user's.
    from determined.launch import torch_distributed

    torch_distributed.main(sys.argv[1:])
