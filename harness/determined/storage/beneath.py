"""Files below a directory that another account can write.

The deleting or writing process may have more rights than that account, which can exchange a directory for a
link between any two steps. So a directory is held by its descriptor, each name is looked up in the directory
that was opened before it, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_LINK = (errno.ELOOP, errno.ENOTDIR)
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened(top: Path | int, *parts: str) -> Iterator[int]:
    """A descriptor of the file or directory ``top``/``parts…``, for the block. ``top``: also a descriptor.

    ``top`` may be a link; below it none is followed, not even one that is made meanwhile. A pipe is opened
    without waiting for a writer. Raises OSError; see :func:`is_link`.
    """
    names = [name for part in parts for name in PurePosixPath(part).parts]
    if any(name in ("/", "..") for name in names):
        raise OSError(errno.ENOENT, "lies outside", "/".join(parts))
    descriptor = os.dup(top) if isinstance(top, int) else os.open(top, _FOLDER)
    try:
        for name in names:
            inner = os.open(name, os.O_RDONLY | _NO_LINK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def is_link(error: OSError) -> bool:
    """True if a function of this module met a link, or a file where a directory should be."""
    return error.errno in _LINK


def is_file(folder: int, name: str) -> bool:
    """True if the open directory has a regular file ``name``; links do not count."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


@contextlib.contextmanager
def made(top: int, path: str) -> Iterator[tuple[int, str]]:
    """The directory of ``path`` below ``top``, made where it is missing, and the last name of ``path``.

    Raises PermissionError for a directory of another account (neither this process', root's, nor that of
    ``top``): it could read and change what is written there.
    """
    *folders, name = PurePosixPath(path).parts
    owners = {os.geteuid(), 0, os.fstat(top).st_uid}
    with contextlib.ExitStack() as stack:
        folder = top
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            folder = stack.enter_context(opened(folder, part))
            owner = os.fstat(folder).st_uid
            if owner not in owners:
                why = f"the directory {part} belongs to another account (uid {owner})"
                raise PermissionError(errno.EACCES, why)
        yield folder, name


def regular_files(folder: int) -> Iterator[tuple[str, os.stat_result, int]]:
    """Path, facts, and the owner of the directory around it, of each regular file below the open directory;
    nothing behind links.
    """
    for around, _, names, descriptor in os.fwalk(".", dir_fd=folder):
        owner = os.fstat(descriptor).st_uid
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield str(PurePosixPath(around, name)), status, owner


@contextlib.contextmanager
def created(folder: int, name: str) -> Iterator[BinaryIO]:
    """A new file ``name`` of the open directory, to be written. Raises FileExistsError, also for a link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
    with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
        yield file


def write(folder: int, name: str, content: bytes) -> None:
    """Make ``content`` the file ``name`` of the open directory, durably and in one step."""
    new = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=folder)
    with created(folder, new) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove_one(folder: int, path: str) -> None:
    """Remove a file, a link, or (if ``path`` ends in "/") an empty directory below ``folder``, if it
    exists."""
    *above, name = PurePosixPath(path).parts
    with contextlib.suppress(FileNotFoundError), opened(folder, *above) as parent:
        if path.endswith("/"):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def remove(folder: int, path: str) -> None:
    """Remove the file or tree ``path`` below ``folder``, if it exists. Others may remove it at the same
    time."""
    *above, name = PurePosixPath(path).parts
    with contextlib.suppress(FileNotFoundError), opened(folder, *above) as parent:
        _remove(parent, name)


def empty(folder: int) -> None:
    """Remove everything in the open directory. Others may remove it at the same time."""
    for name in [entry.name for entry in os.scandir(folder)]:
        _remove(folder, name)


def _remove(parent: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        while stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            try:
                # By descriptors all the way down, where one is given.
                shutil.rmtree(name, dir_fd=parent)
            except FileNotFoundError:
                continue  # another remover was faster within it
            except RecursionError:
                raise OSError(errno.ELOOP, "directories are nested too deep", name) from None
            return
        os.unlink(name, dir_fd=parent)
