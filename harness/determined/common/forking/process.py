"""A fork's first steps, and settings of a process in the kernel (Linux)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# Loaded once, before any fork: a fresh process pays for it otherwise.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def become_subreaper() -> None:
    """Make this process, not init, the parent of descendants whose parents died (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux).

    The kernel means the thread that started it: start such a process from a thread that lives as long as the
    parent should, the main one.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def tied_to_parent(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A ``preexec_fn`` for a program that must not outlive this process; see :func:`die_with_parent`."""
    parent = os.getpid()

    def tie() -> None:
        die_with_parent(number)
        if os.getppid() != parent:  # it died before the kernel knew
            os._exit(1)

    return tie


def no_new_privileges() -> None:
    """Have the kernel ignore set-uid bits for this process and whatever it starts (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def be_dumpable() -> None:
    """Let the account's other processes read this one's memory, as before its rights changed (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def set_title(title: str) -> None:
    """Set the name that ``ps`` and ``top`` show (Linux, 15 characters)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(title[:15])


def begin(parent: int, stdout: int, stderr: int) -> None:
    """Detach a fork of process ``parent``: it gets its own session, dies with the parent, and has
    nothing open but these two descriptors and an empty standard input.
    """
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:  # it died before the kernel knew
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, _highest_descriptor() + 1)
    set_title("python3")


def _highest_descriptor() -> int:
    with contextlib.suppress(OSError):
        return max(int(entry.name) for entry in Path("/dev/fd").iterdir())
    return os.sysconf("SC_OPEN_MAX")


@contextlib.contextmanager
def output_pipes(
    make: Callable[[], tuple[int, int]] = os.pipe,
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """((read, write) of standard output, the same of standard error) for a process started in the block.

    After the block the write ends are closed here. The read ends stay open, unless the block ends in an
    exception.
    """
    out, err = make(), make()
    try:
        yield out, err
    except BaseException:
        os.close(out[0])
        os.close(err[0])
        raise
    finally:
        os.close(out[1])
        os.close(err[1])
