"""Work on files as the accounts that they belong to, where root itself may not.

A network file system may deny root what it allows the owner (NFS: ``root_squash``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from determined import errors

T = TypeVar("T")


def insist(top: Path, path: Path, act: Callable[[], T]) -> T:
    """The result of ``act``. Where root is denied it, ``act`` runs again as the owner of ``top``, and then as
    the owner of ``path``, which lies below ``top``.

    ``act``: raises StorageError, caused by the PermissionError; may run several times, and in this thread
    only. Raises the error of its first run if no owner may do it either.
    """
    try:
        return act()
    except errors.StorageError as error:
        if not _denied(error) or os.geteuid() != 0:
            raise
        denied = error
    with contextlib.ExitStack() as stack:
        for one in (top, path):
            owner = _owner(one)
            if owner is None:
                continue
            stack.enter_context(acting_as(*owner))
            try:
                return act()
            except errors.StorageError as error:
                if not _denied(error):
                    raise
    raise denied


def _denied(error: errors.StorageError) -> bool:
    return isinstance(error.__cause__, PermissionError)


def _owner(path: Path) -> tuple[int, int] | None:
    """The ids of user and group; None: they cannot be looked up, or are root's."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_uid, found.st_gid) if found.st_uid != 0 else None


@contextlib.contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """In the block this thread reaches files with the rights of the account, and no other thread does.

    Linux: setfsuid(2), which takes root's exemption from permissions away, too. The process must be root.
    """
    libc = _libc()
    before = libc.setfsgid(gid), libc.setfsuid(uid)
    try:
        yield
    finally:
        libc.setfsuid(before[1])
        libc.setfsgid(before[0])


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
