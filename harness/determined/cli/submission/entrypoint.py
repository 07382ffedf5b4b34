"""Checks before every trial fails that the entrypoint's program is among the files that would be sent."""

from __future__ import annotations

import difflib
import importlib.util
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined.experimental._submission import Submission

_INTERPRETER = re.compile(r"(?:.*/)?(?:python[0-9.]*|bash|sh)")
_SCRIPT = re.compile(r"[\w.-][\w./-]*\.(?:py|sh)")
# A shell makes something else of these.
_SHELL = re.compile(r"[;&|<>$`*?(){}\n]")
_HOOK = "startup-hook.sh"


def missing(planned: Submission, config_file: Path, model_dir: Path | None) -> str | None:
    """The mistake, and what to do about it. None also where the file may come from somewhere else.

    That is the startup hook, a mount, a template or an image.
    """
    from determined import expconf

    config = planned.config.document.data
    paths = {item.path for item in planned.items}
    if planned.template is not None or config.get("bind_mounts") or _HOOK in paths:
        return None
    spec = expconf.trial_class(config)
    if spec is not None:
        name = spec.partition(":")[0].partition(".")[0]
        if {name, f"{name}.py"} & paths or _has_image(config) or _is_installed(name):
            return None
        wanted = f"{name}.py"
    else:
        entrypoint = config.get("entrypoint")
        bare = _bare_script(entrypoint)
        if bare is not None and bare in paths and not _has_image(config):
            interpreter = "python3" if bare.endswith(".py") else "bash"
            return f"the entrypoint runs {bare}, which is a file and no command: write {interpreter} {bare}"
        found = _script(entrypoint)
        if found is None or found in paths:
            return None
        wanted = found
    return (
        f"the entrypoint runs {wanted}, which is not among the files that would be sent"
        + _advice(wanted, paths, config_file, model_dir)
    )


def _advice(wanted: str, paths: set[str], config_file: Path, model_dir: Path | None) -> str:
    there = sorted(path for path in paths if Path(path).name == Path(wanted).name)
    if there:
        return f"; there is {there[0]}"
    if model_dir is None:
        beside = config_file.parent
        folder = str(beside) if (beside / wanted).is_file() else "MODEL_DIR"
        return (
            f", as no folder is given: write {shlex.quote(str(config_file))} {shlex.quote(folder)}"
        )
    if model_dir.is_dir() and (model_dir / wanted).is_file():
        return ": a .detignore, or a rule for every folder, leaves it out"
    near = difflib.get_close_matches(wanted, paths, n=1, cutoff=0.8)
    return f" ({model_dir})" + (f"; did you mean {near[0]}?" if near else "")


def _bare_script(entrypoint: Any) -> str | None:
    """The script that an entrypoint names as if it were a command on the PATH."""
    words = _words(entrypoint)
    return words[0] if words and "/" not in words[0] and _SCRIPT.fullmatch(words[0]) else None


def _words(entrypoint: Any) -> Sequence[str]:
    """The words of a plain command line; none where a shell makes something else of it."""
    if not isinstance(entrypoint, str):
        return [str(word) for word in entrypoint or ()]
    try:
        return [] if _SHELL.search(entrypoint) else shlex.split(entrypoint)
    except ValueError:
        return []


def _script(entrypoint: Any) -> str | None:
    """The script that a plain command line runs, below the working directory."""
    words = _words(entrypoint)
    if not words or not _INTERPRETER.fullmatch(words[0]):
        return None
    rest = list(words[1:])
    if rest[:1] == ["-m"] and len(rest) > 1 and rest[1].startswith("determined.launch."):
        rest = rest[rest.index("--") + 1 :] if "--" in rest else rest[2:]
        if rest and _INTERPRETER.fullmatch(rest[0]):
            rest = rest[1:]
    while rest and rest[0] in ("-u", "-O", "-B", "-e", "-x"):
        rest = rest[1:]
    found = rest[0].removeprefix("./") if rest else ""
    return found if _SCRIPT.fullmatch(found) and ".." not in found.split("/") else None


def _has_image(config: dict[str, Any]) -> bool:
    return (config.get("environment") or {}).get("image") is not None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
