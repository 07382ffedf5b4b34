"""Importing model code from a directory without leaving traces."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def _module_names(directory: Path) -> set[str]:
    """Top-level names that an import could find in ``directory``."""
    names = set()
    for entry in directory.iterdir():
        if entry.is_dir():
            names.add(entry.name)
        elif entry.suffix in (".py", ".so", ".pyc"):
            names.add(entry.name.split(".")[0])
    return {name for name in names if name.isidentifier()}


def _take_modules(names: set[str]) -> dict[str, ModuleType]:
    """Remove the modules of these top-level names from ``sys.modules`` and return them."""
    found = [name for name in sys.modules if name.split(".")[0] in names]
    return {name: sys.modules.pop(name) for name in found}


# The thread inside a block holds it.
_block = threading.Lock()


@contextlib.contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Import from ``path`` first, inside the ``with`` only.

    Modules that the directory defines are imported again, even when modules of the same names are already
    loaded. They leave ``sys.modules`` at the block's end; objects taken from them stay usable. So the code
    of a checkpoint can be loaded beside the current code::

        with det.import_from_path(checkpoint / "code"):
            import model_def as old_model_def

    Imports that the loaded code makes later, from within functions, no longer see ``path``.
    Raises FileNotFoundError, NotADirectoryError, or RuntimeError within another such block, of this thread or
    another.
    """
    directory = Path(path).resolve()
    names = _module_names(directory)
    # Never the interpreter's own: a folder named "json" must not reload what everything holds.
    names -= set(sys.stdlib_module_names) | {"determined"}
    if not _block.acquire(blocking=False):
        raise RuntimeError(
            "det.import_from_path() is in use already, in this or in another thread: sys.path and "
            "sys.modules are the whole process', so load the code of one directory after the other"
        )
    try:
        hidden = _take_modules(names)
        sys.path.insert(0, str(directory))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(str(directory))
            _take_modules(names)
            sys.modules.update(hidden)
    finally:
        _block.release()
