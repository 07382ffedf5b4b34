"""Decides if an interpreter may fork and go on running Python: it has one thread and no open accelerator."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path


class NotForkableError(Exception):
    """A fork of this process would not be safe (any more). The message says why; it begins with ``it …``."""


@contextlib.contextmanager
def checked_import() -> Iterator[None]:
    """Imports in the block must leave the process forkable. Raises NotForkableError after it."""
    threads, blas = _os_threads(), _blas_libraries()
    yield
    check()
    # OpenBLAS ends its threads before a fork and starts them again after it; nobody else does.
    if _os_threads() > threads and _blas_libraries() == blas:
        raise NotForkableError("it starts threads")


def check() -> None:
    """Raises NotForkableError for Python's threads and opened accelerators."""
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()[1:]]
        raise NotForkableError(f"it starts threads: {', '.join(names)}")
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "cuda", None) and torch.cuda.is_initialized():
        raise NotForkableError("it initialises CUDA")
    if _opened_accelerators():
        raise NotForkableError("it opens an accelerator")


def settle() -> None:
    """Make forks cheap: the garbage collector of a fork ignores the objects that exist now."""
    gc.collect()
    gc.freeze()
    forget_finalizers()


def forget_finalizers() -> None:
    """Drop the exit hooks of libraries in this process: torch's hook takes 40 ms, and a fork must not
    delete a temporary directory that an import has made.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False


def shadows_imports(folder: Path) -> bool:
    """Whether ``folder``, where a program is about to run, has a module of a name that was imported here
    already from elsewhere. The program's own module must win, so the program needs a new interpreter.
    """
    names = set()
    for entry in folder.iterdir():
        stem, _, suffix = entry.name.partition(".")
        package = not suffix and (entry / "__init__.py").exists()
        if package or suffix == "py" or suffix.endswith("so"):
            names.add(stem)
    names.discard("__main__")
    # Not isdisjoint(): that would look at every module's name, thousands of pages to copy in a fork.
    return any(name in sys.modules for name in names)


def _os_threads() -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return 1


def _blas_libraries() -> set[str]:
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in maps if "openblas" in line}
    return set()


def _opened_accelerators() -> bool:
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")):
                    return True
    return False
