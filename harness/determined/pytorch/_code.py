"""Keeps the code of a training in its checkpoints, so that they can be loaded anywhere."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

from determined.common import context

logger = logging.getLogger("determined.pytorch")

MAX_FILES = 10_000


def files(root: Path) -> list[tuple[str, Path]]:
    """(name, path) of each file of ``root`` that would be submitted; nothing if they are too large or too
    many.

    ``.detignore`` leaves files out as it does when an experiment is submitted.
    """
    found: list[tuple[str, Path]] = []
    total = 0
    try:
        for name, path, size in context.regular_files(root):
            found.append((name, path))
            total += size
            if total > context.LIMIT_BYTES or len(found) > MAX_FILES:
                logger.warning(
                    "checkpoints are written without code: %s has more than %d MiB or %d files "
                    "(%s leaves files out)",
                    root,
                    context.LIMIT_BYTES >> 20,
                    MAX_FILES,
                    context.IGNORE_FILE,
                )
                return []
    except context.ContextError as error:
        logger.warning("checkpoints are written without code: %s", error)
        return []
    return found


def write(code: list[tuple[str, Path]], folder: Path) -> None:
    """Copy ``code`` to ``folder``; files that no longer exist are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in code:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(path, target)
        except FileNotFoundError:
            logger.debug("%s does not exist any more and is left out of the checkpoint", path)


def name_of(trial_class: type) -> str:
    """``module:Class``, importable with the code's folder on the path.

    For a class of the script itself ``module`` is the script's name, not ``__main__``.
    """
    module = trial_class.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is not None:
            path = Path(file).resolve()
            root = Path.cwd().resolve()
            if path.is_relative_to(root):
                module = ".".join(path.relative_to(root).with_suffix("").parts)
    return f"{module}:{trial_class.__qualname__}"
