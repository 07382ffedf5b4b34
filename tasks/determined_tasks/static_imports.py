"""Finds the installed modules that a program will import, from its source, without running it.

Only what is imported whenever the program runs counts: statements at the top level of the entrypoint's
script or module, and of those of the program's own modules that it imports there.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from determined_tasks.entrypoint import command_words

MOST_FILES = 100
MOST_BYTES = 1 << 20  # of one file


def read(entrypoint: str | list[str], workdir: Path) -> list[str]:
    """Modules of installed packages that ``entrypoint`` imports in ``workdir``, in their order.

    For ``from a import b`` both ``a`` and ``a.b`` are named: either may be a module. Nothing is raised:
    what cannot be read names no modules. The standard library is left out.
    """
    start = _start(command_words(entrypoint) or [], workdir)
    if start is None:
        return []
    reader = _Reader(workdir, start)
    reader.read(start)
    return list(reader.found)


def _start(words: list[str], workdir: Path) -> Path | None:
    """The file that a Python command runs."""
    rest = [word for word in words[1:] if word != "-u"]
    if len(rest) >= 2 and rest[0] == "-m":
        found = _file(workdir, rest[1])
        return found or _launched(rest[2:], workdir)
    if rest and not rest[0].startswith("-"):
        return workdir / rest[0]
    return None


def _launched(words: list[str], workdir: Path) -> Path | None:
    """The file that a launcher of the platform's runs: the script, or the trial class's module."""
    for word, following in itertools.pairwise([*words, ""]):
        if word.endswith(".py"):
            return workdir / word
        if word == "--trial":
            return _file(workdir, following.partition(":")[0])
    return None


def _file(folder: Path, module: str) -> Path | None:
    """The file of the program in which ``module`` is defined."""
    path = folder.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


class _Reader:
    def __init__(self, workdir: Path, start: Path) -> None:
        self.found: dict[str, None] = {}
        self._folders = list(dict.fromkeys([start.parent, workdir]))
        self._read: set[Path] = set()

    def read(self, path: Path) -> None:
        if path in self._read or len(self._read) >= MOST_FILES:
            return
        self._read.add(path)
        try:
            if path.stat().st_size > MOST_BYTES:
                return
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        for name in _imports(tree):
            self._note(name)

    def _note(self, name: str) -> None:
        top = name.partition(".")[0]
        own = next((folder for folder in self._folders if self._is_own(folder, top)), None)
        if own is None:
            if top not in sys.stdlib_module_names:
                self.found[name] = None
            return
        path = _file(own, name)
        if path is not None:
            self.read(path)

    def _is_own(self, folder: Path, top: str) -> bool:
        return (folder / f"{top}.py").is_file() or (folder / top).is_dir()


def _imports(tree: ast.Module) -> Iterator[str]:
    """The names imported by the module's top-level statements; not those within ``if``, ``try``,
    functions."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module
            for alias in statement.names:
                if alias.name != "*":
                    yield f"{statement.module}.{alias.name}"
