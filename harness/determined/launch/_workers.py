"""The processes of a gang: forked from this interpreter, or separate programs."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.forking import process, python, safety

TRIAL_MODULE = "determined.pytorch._run"
"""Runs a trial class."""

WARM_MODULES = ("torch", "torch.distributed", "torch.nn.parallel")
"""Modules imported before the fork, so that the forks need not import them."""

_PYTHON = re.compile(r"python[0-9.]*$")


@dataclass(frozen=True)
class Worker:
    """A started process that leads its own session; its output is read from two pipes."""

    rank: int
    pid: int
    stdout: int
    stderr: int


@dataclass(frozen=True)
class Program:
    """A script or module of this interpreter (``argv[0]`` is its path or name)."""

    argv: list[str]
    as_module: bool = False

    @property
    def folder(self) -> Path:
        """The directory in which its imports are looked for first."""
        return Path.cwd() if self.as_module else Path(os.path.realpath(self.argv[0])).parent


def is_python(program: str) -> bool:
    """True if a command's first word is a Python interpreter. Any is taken for this interpreter."""
    return program == sys.executable or bool(_PYTHON.fullmatch(Path(program).name))


def python_program(command: list[str]) -> Program | None:
    """``command`` as a program of this interpreter. None if it is another program, or has options for
    Python.
    """
    if command[0].endswith(".py"):
        return Program(command)
    if not is_python(command[0]):
        return None
    rest = command[1:]
    while rest[:1] == ["-u"]:  # output is never held back anyway
        rest = rest[1:]
    if rest[:1] == ["-m"] and len(rest) > 1:
        return Program(rest[1:], as_module=True)
    if rest and not rest[0].startswith("-"):
        return Program(rest)
    return None


def why_not_fork(program: Program) -> str | None:
    """The reason why a fork of this process cannot become ``program``, None if it can.

    Imports torch, so that the forks need not.
    """
    if sys.platform != "linux":
        return f"forks with torch in them are not safe on {sys.platform}"
    try:
        with safety.checked_import():
            for module in WARM_MODULES:
                importlib.import_module(module)
            if program.argv[0] == TRIAL_MODULE:
                # What it imports, not the module itself: that is about to run under another name.
                importlib.import_module("determined.pytorch._trainer")
    except safety.NotForkableError as error:
        return str(error)
    if not program.as_module and not program.argv[0].endswith(".py"):
        return "it may be a directory or an archive"
    if safety.shadows_imports(program.folder):
        return "a file beside it has the name of a module that is imported already"
    return None


def fork(
    rank: int,
    program: Program,
    env: Mapping[str, str],
    base_path: list[str],
    at_end: Callable[[], None] | None = None,
) -> Worker:
    """A fork of this process (which has one thread) that becomes ``program``; see ``run_as_main``."""

    def start(stdout: int, stderr: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            process.begin(parent, stdout, stderr)
            safety.forget_finalizers()
            python.run_as_main(
                program.argv,
                as_module=program.as_module,
                env=env,
                base_path=base_path,
                at_end=at_end,
            )
        finally:
            os._exit(1)

    return _with_pipes(rank, start)


def execute(rank: int, command: list[str], env: Mapping[str, str]) -> Worker:
    """Start ``command`` as a separate program. Raises OSError."""
    parent = os.getpid()

    def before() -> None:
        process.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def start(stdout: int, stderr: int) -> int:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            # Its output is a pipe here, wherever ours goes.
            env={"PYTHONUNBUFFERED": "1", **env},
            start_new_session=True,
            preexec_fn=before,
        )
        started.returncode = 0  # it is the gang that waits for it; Popen must not warn
        return started.pid

    return _with_pipes(rank, start)


def _with_pipes(rank: int, start: Callable[[int, int], int]) -> Worker:
    with process.output_pipes() as ((out_read, out_write), (err_read, err_write)):
        pid = start(out_write, err_write)
    return Worker(rank, pid, out_read, err_read)
