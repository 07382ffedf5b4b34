"""Keeps the code of a training in its checkpoints, so that they can be loaded anywhere.

On the cluster that is what was submitted, which is the working directory. Elsewhere the working directory may
hold anything (an environment, data, secrets), so only the trial's module is kept, with the modules beside it
that it imports.
"""

from __future__ import annotations

import ast
import logging
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from determined.common import context

logger = logging.getLogger("determined.pytorch")

MAX_FILES = 10_000
IGNORE_FILES = (".gitignore", context.IGNORE_FILE)
"""Off the cluster; the later one wins. Submitted files have passed ``.detignore`` alone, and are kept."""


def files(trial_class: type, submitted: Path | None) -> list[tuple[str, Path]]:
    """(name, path) of each file of code; ``name`` is its place on the import path, with ``/``.

    ``submitted``: the directory with the model definition; None off the cluster. Neither ``.env*`` nor what
    ignore files name is among them, and of a directory that is too large only the modules are.
    """
    try:
        found = dict(_modules(trial_class, submitted))
        if submitted is not None:
            found |= _tree(submitted)
    except context.ContextError as error:
        logger.warning("checkpoints are written without code: %s", error)
        return []
    return sorted(found.items())


def _tree(root: Path) -> dict[str, Path]:
    """The files of ``root`` that would be submitted again; none if they are too large or too many."""
    found: dict[str, Path] = {}
    total = 0
    for name, path, size in context.regular_files(root):
        if any(part.startswith(context.SECRETS) for part in name.split("/")):
            continue
        found[name] = path
        total += size
        if total > context.LIMIT_BYTES or len(found) > MAX_FILES:
            logger.warning(
                "checkpoints keep only the modules that the trial imports: %s has more than %d MiB or %d "
                "files (%s leaves files out)",
                root,
                context.LIMIT_BYTES >> 20,
                MAX_FILES,
                context.IGNORE_FILE,
            )
            return {}
    return found


def _modules(trial_class: type, submitted: Path | None) -> Iterator[tuple[str, Path]]:
    """The trial's module and those that it imports, of the directory it was imported from."""
    file = getattr(sys.modules.get(trial_class.__module__), "__file__", None)
    if file is None:
        return
    start = Path(file).absolute()
    name = _module_name(trial_class)
    root = start.parents[name.count(".") + (start.name == "__init__.py")]
    if _is_installed(root):
        return
    top = submitted or _repository(root)
    ignore_files = IGNORE_FILES if submitted is None else (context.IGNORE_FILE,)
    left_out = []
    for path in _imported(name, start, root):
        if context.is_ignored(path, top if path.is_relative_to(top) else root, ignore_files):
            left_out.append(path)
        else:
            yield path.relative_to(root).as_posix(), path
    if left_out:
        logger.warning(
            "checkpoints are written without %s, which %s leaves out; they cannot be loaded without it",
            ", ".join(map(str, left_out)),
            " or ".join(ignore_files),
        )


def _imported(name: str, start: Path, root: Path) -> list[Path]:
    """``start`` and the files below ``root`` that it imports, at once or later, in any order.

    They are read from the sources, because a function may import what this process has not imported yet.
    Modules whose names no source has (``importlib``) are found among the loaded ones.
    """
    found: dict[Path, None] = {}
    waiting = [(name, start), *_parts(name, root), *_loaded(root)]
    while waiting:
        module, path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        waiting += [pair for wanted in _imports(path, package) for pair in _parts(wanted, root)]
    return list(found)


def _imports(path: Path, package: str) -> Iterator[str]:
    """The absolute names that the module's source imports, anywhere in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(
                [*(above if node.level else ()), *((node.module,) if node.module else ())]
            )
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _parts(name: str, root: Path) -> Iterator[tuple[str, Path]]:
    """(module, file) of ``name`` and of the packages around it, of those that are files below ``root``."""
    words = [word for word in name.split(".") if word]
    for length in range(1, len(words) + 1):
        place = root.joinpath(*words[:length])
        for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if path.is_file():
                yield ".".join(words[:length]), path


def _loaded(root: Path) -> Iterator[tuple[str, Path]]:
    """(module, file) of each module that this process has imported from ``root``."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name != "__main__":
            yield from (pair for pair in _parts(name, root) if pair[1] == Path(file).absolute())


def _is_installed(root: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in root.parts)


def _repository(folder: Path) -> Path:
    """The directory of the Git repository around ``folder``; ``folder`` itself if there is none."""
    above: Iterable[Path] = (folder, *folder.parents)
    return next((path for path in above if (path / ".git").exists()), folder)


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
    return f"{_module_name(trial_class)}:{trial_class.__qualname__}"


def _module_name(trial_class: type) -> str:
    module = trial_class.__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return module if file is None else Path(file).stem
