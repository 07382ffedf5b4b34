"""Whether what the entrypoint runs is among the files that would be sent: said before every trial fails."""

from __future__ import annotations

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
    """What is wrong, and what to do. None also where the file may come from somewhere else.

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
        found = _script(config.get("entrypoint"))
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
    return f" ({model_dir})"


def _script(entrypoint: Any) -> str | None:
    """The script that a plain command line runs, below the working directory."""
    words: Sequence[str]
    if isinstance(entrypoint, str):
        try:
            words = [] if _SHELL.search(entrypoint) else shlex.split(entrypoint)
        except ValueError:
            return None
    else:
        words = [str(word) for word in entrypoint or ()]
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
