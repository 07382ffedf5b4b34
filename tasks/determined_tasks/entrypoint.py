"""Decides how the process of an experiment's ``entrypoint`` is started.

Python entrypoints (``python3 script.py …``, ``python3 -m module …``, ``module:TrialClass``) can start in a
fork of an interpreter that has its imports done; anything else, and anything that must be set before an
interpreter starts, runs as a separate program. Both ways look the same to the user.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from determined.common.forking import safety
from determined_tasks.packages import Packages, installer

STARTUP_HOOK = "startup-hook.sh"
CLUSTER_HOOK = "cluster-startup-hook.sh"
"""In the run directory: the ``startup_hook`` of the cluster configuration."""
CLUSTER_HOOK_FIELD = "task_container_defaults.startup_hook"

TRIAL_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

# Read when the interpreter, the C library or a numerics library starts: too late in a fork.
EARLY_VARIABLES = re.compile(
    r"(PYTHON|LD_|OMP_|GOMP_|KMP_|MKL_|OPENBLAS_|BLIS_|NUMEXPR_|TORCH|PYTORCH|MALLOC_|GLIBC_|LC_)"
    r"|(LANG|LANGUAGE)$"
)

# Characters that mean something to a shell, even where shlex would take them as text.
SHELL_SYNTAX = re.compile(r"[|&;<>()$`\\*?\[\]{}~#!\n]")

# Words that a shell knows without the PATH.
SHELL_BUILTINS = frozenset(
    re.split(
        " ",
        ". : [ alias bg break case cd command continue echo eval exec exit export false fg for getopts"
        " hash if jobs kill local printf pwd read readonly return set shift test times trap true type"
        " ulimit umask unalias unset until wait while",
    )
)


class EntrypointError(Exception):
    """The entrypoint cannot be started at all; the message is meant for the user."""


@dataclass(frozen=True)
class StartMethod:
    """The way to start a process.

    ``form``: ``script`` and ``module`` run in this interpreter (``argv[0]`` is the script or the
    module's name), ``program`` is executed. ``first_word`` is set when the shell was given a plain
    command that is not on the PATH: the shell's exit code 127 then means just that. ``note`` is for the
    task's log.
    """

    form: Literal["script", "module", "program"]
    argv: list[str]
    first_word: str | None = None
    note: str | None = None


def command_words(entrypoint: str | list[str]) -> list[str] | None:
    """The words of an entrypoint, or None when only a shell can split it."""
    if isinstance(entrypoint, list):
        return list(entrypoint)
    text = entrypoint.strip()
    if TRIAL_CLASS.fullmatch(text):
        from determined.expconf import launch_command  # its models take a while to import

        return launch_command({"entrypoint": text})
    if SHELL_SYNTAX.search(text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed: the shell's message is the best one
        return None
    if not words or "=" in words[0]:
        return None
    return words


def plan(
    entrypoint: str | list[str],
    *,
    workdir: Path,
    env: Mapping[str, str],
    user_env: Mapping[str, str],
    may_fork: bool,
    packages: Packages | None = None,
    locate: Callable[[str], Path] | None = None,
) -> StartMethod:
    """Decides how to start ``entrypoint`` in ``workdir``.

    ``env`` is the whole environment, ``user_env`` the part of it that the user set; ``may_fork`` says that
    this process may become the training process. ``packages``: where the code installs, whose ``python3`` is
    this interpreter too. ``locate``: finds the machine's file that the process will see at a path; without
    it, the same.

    Raises EntrypointError when a script, module or program does not exist.
    """
    locate = locate or workdir.joinpath
    words = command_words(entrypoint)
    hooks = hooks_of(workdir, Path(env.get("DET_RUN_DIR", os.devnull)))
    folders = {Path(sys.executable).parent, *([packages.bin] if packages else [])}
    python = _python_call(words, env, folders) if words and not hooks else None
    if python is not None and words is not None:
        _check_python_target(python, workdir, packages, locate)
        early = [name for name in user_env if EARLY_VARIABLES.match(name)]
        if not may_fork or early or _shadowed(python, workdir, locate):
            return StartMethod("program", words)
        hidden = packages.hidden_in_fork() if packages else None
        source = installer(workdir)
        if hidden is not None:
            note = (
                f"the experiment has installed {hidden}, so the program starts in a new interpreter: one that"
                " has done its imports would not see that"
            )
            return StartMethod("program", words, note=note)
        if source is None:
            return python
        note = (
            f"{source} names pip install, so the program starts in a new interpreter: there an"
            " installed package is not hidden by a version that was imported before"
        )
        return StartMethod("program", words, note=note)
    if hooks:
        return _with_hooks(entrypoint, words, hooks)
    if words is None:
        return StartMethod("program", ["sh", "-c", str(entrypoint)])
    found = _which(words[0], locate, env)
    if found:
        return StartMethod("program", words)
    if isinstance(entrypoint, list) or "/" in words[0]:
        raise EntrypointError(f"entrypoint not found: {_missing(words[0], locate)}")
    builtin = words[0] in SHELL_BUILTINS
    return StartMethod("program", ["sh", "-c", entrypoint], None if builtin else words[0])


@dataclass(frozen=True)
class Hook:
    """A file that is sourced before the entrypoint. ``name``: for people; ``source``: the shell's word for
    it; ``done``: the file in the run directory that exists when it has got to its end."""

    name: str
    source: str
    done: str


def hooks_of(workdir: Path, run_dir: Path) -> tuple[Hook, ...]:
    """The startup hooks of a leg: the cluster's, then that of its model definition."""
    found = []
    if (run_dir / CLUSTER_HOOK).is_file():
        source = f'"$DET_RUN_DIR/{CLUSTER_HOOK}"'
        found.append(Hook(CLUSTER_HOOK_FIELD, source, "cluster-hook-done"))
    if (workdir / STARTUP_HOOK).is_file():
        found.append(Hook(STARTUP_HOOK, f"./{STARTUP_HOOK}", "hook-done"))
    return tuple(found)


def pending_hook(workdir: Path, run_dir: Path) -> str | None:
    """The name of the first hook that did not get to its end; None: there is none."""
    hooks = hooks_of(workdir, run_dir)
    return next((one.name for one in hooks if not (run_dir / one.done).exists()), None)


def _with_hooks(
    entrypoint: str | list[str], words: list[str] | None, hooks: Sequence[Hook]
) -> StartMethod:
    shell = "bash" if shutil.which("bash") else "sh"
    return StartMethod("program", [shell, "-c", hooked(entrypoint, words, hooks)])


def after_meeting(argv: list[str]) -> list[str]:
    """The command of a node of a gang: it finds the other nodes, then runs ``argv``."""
    # Not from the user's directory, whose files may have the names of modules.
    prepare = ["python3", "-P", "-m", "determined.exec.prep_container", "--rendezvous"]
    return [*prepare, "--", *argv]


def hooked(entrypoint: str | list[str], words: list[str] | None, hooks: Sequence[Hook]) -> str:
    """A shell's program for the startup hooks and then the entrypoint.

    Hooks are sourced, so that what they export reaches the entrypoint. A hook that fails ends the leg.
    """
    command = shlex.join(words) if words else str(entrypoint)
    lines = [f'set -e\n. {one.source}\nset +e\ntouch "$DET_RUN_DIR/{one.done}"' for one in hooks]
    # Text with more than one program is run by a separate shell.
    run = f"exec {command}" if _is_one(words) else f"exec sh -c {shlex.quote(command)}"
    return "\n".join([*lines, run])


def _is_one(words: list[str] | None) -> bool:
    """True if the words are the call of one program."""
    return words is not None and words[0] not in SHELL_BUILTINS


def in_container(entrypoint: str | list[str], *, hooks: Sequence[Hook] = ()) -> list[str]:
    """The command for a container, whose programs nobody knows before it runs."""
    words = command_words(entrypoint)
    if hooks:
        # The best shell that the image has.
        choose = 'exec "$(command -v bash || command -v sh)" -c "$0"'
        return ["sh", "-c", choose, hooked(entrypoint, words, hooks)]
    if words is not None and (isinstance(entrypoint, list) or _is_one(words)):
        return words
    return ["sh", "-c", str(entrypoint)]


def _python_call(
    words: list[str], env: Mapping[str, str], folders: Collection[Path]
) -> StartMethod | None:
    """``words`` as a script or module of this interpreter; None for other programs and options."""
    if not _is_this_python(words[0], env, folders):
        return None
    rest = words[1:]
    while rest and rest[0] == "-u":  # output is never held back anyway
        rest = rest[1:]
    if not rest:
        return None
    if rest[0] == "-m":
        return StartMethod("module", rest[1:]) if len(rest) > 1 else None
    if rest[0].startswith("-"):
        return None
    return StartMethod("script", rest)


def _is_this_python(word: str, env: Mapping[str, str], folders: Collection[Path]) -> bool:
    name = Path(word).name
    if not re.fullmatch(r"python(3(\.\d+)?)?", name):
        return False
    found = shutil.which(word, path=env.get("PATH"))
    # The folder decides which packages a Python has: a virtual environment's is a link to another.
    return (
        found is not None
        and Path(found).parent in folders
        and os.path.realpath(found) == os.path.realpath(sys.executable)
    )


def _check_python_target(
    start: StartMethod, workdir: Path, packages: Packages | None, locate: Callable[[str], Path]
) -> None:
    if start.form == "script":
        if not locate(start.argv[0]).exists():
            raise EntrypointError(f"entrypoint not found: {_missing(start.argv[0], locate)}")
        return
    top = start.argv[0].partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return
    installed = [str(packages.site)] if packages else []
    if PathFinder.find_spec(top, [str(workdir), *installed, *sys.path]) is None:
        raise EntrypointError(
            f"entrypoint not found: no module named {top!r} in the model definition or among the"
            " installed packages"
        )


def _shadowed(start: StartMethod, workdir: Path, locate: Callable[[str], Path]) -> bool:
    """True if the user's files would hide a module that is already imported here.

    Also true for a script that is a directory or an archive: those have other import rules.
    """
    folder = workdir
    if start.form == "script":
        script = locate(start.argv[0])
        if not script.is_file() or script.suffix not in ("", ".py"):
            return True
        folder = script.parent
    return safety.shadows_imports(folder)


def _which(word: str, locate: Callable[[str], Path], env: Mapping[str, str]) -> str | None:
    if "/" in word:
        path = locate(word)
        return str(path) if path.is_file() and os.access(path, os.X_OK) else None
    return shutil.which(word, path=env.get("PATH"))


def _missing(word: str, locate: Callable[[str], Path]) -> str:
    path = locate(word)
    if "/" not in word and not word.endswith(".py"):
        return f"no command {word!r} on the PATH"
    if path.is_dir():
        return f"{word} is a directory"
    if path.exists():
        return f"{word} is not executable (chmod +x {word}, or name its interpreter)"
    if Path(word).is_absolute():
        return f"{word} does not exist on the agent"
    return f"{word} is not in the model definition"
