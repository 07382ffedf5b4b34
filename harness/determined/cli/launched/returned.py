"""The files that a task has changed, brought back into a directory of this machine.

Nothing outside of the directory is touched: a name is one inside it, and no link is followed. Each file is
there as a whole or not at all. What was changed here meanwhile stays, and the task's version lies beside it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import secrets
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from determined.cli.errors import CliError, talk
from determined.common.printable import counted, one_line
from determined.common.wire import returned

if TYPE_CHECKING:
    from determined.experimental._task import Task

LARGEST = returned.MOST_BYTES + returned.MOST_FILES * (16 << 10)
"""Bytes of an archive, with its headers, once it is unpacked."""
PART_CHARS = 255
SHOWN = 20


@dataclass
class FetchedFiles:
    """What was done, by name. ``kept``: the names beside which the task's version lies, and its name."""

    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


def fetch(task: Task, directory: Path, *, told: bool = False) -> None:
    """Brings them here, says what came, and drops them on the service. Says so when there are none.

    ``told``: what was left out was printed with the task's output.

    Raises CliError when they cannot be written: they are kept, and can be fetched again.
    """
    facts = task.returned_files()
    if not facts["ready"]:
        talk(
            f"no files of task {task.id} are kept: it has not ended yet, or they were fetched before, or its"
            " machine was lost"
        )
        return
    with tempfile.TemporaryFile() as packed:
        with task.open_returned_files() as answer:
            for piece in answer.iter_bytes():
                packed.write(piece)
        packed.seek(0)
        try:
            found = unpack(packed, directory, f".from-{task.id[:8]}")
        except (tarfile.TarError, EOFError, OSError, ValueError) as error:
            raise CliError(
                f"the files of task {task.id} could not all be written into {directory}: {error}; when that"
                f" is mended: det run --fetch {task.id}"
            ) from error
    say(found, [] if told else facts["remarks"])
    task.delete_returned_files()


def say(found: FetchedFiles, remarks: list[str]) -> None:
    """Tells a person what came back."""
    names = [f"{name} (new)" for name in found.new] + found.changed
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        shown = ", ".join(one_line(name) for name in names[:SHOWN])
        talk(f"{counted(len(names), 'file')} came back: {shown}{more}")
    elif not found.kept:
        talk("no files came back: the program has changed none")
    for name, beside in found.kept.items():
        talk(
            f"warning: {one_line(name)} was changed here meanwhile, and stays as it is; the task's version is"
            f" {one_line(beside)}"
        )
    for remark in remarks:
        talk(f"warning: {one_line(str(remark))}")


class _Bounded(io.RawIOBase):
    """Reads an archive, and no more than one may have: a small one can say very much."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = gzip.GzipFile(fileobj=file)
        self._left = LARGEST

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._left:
            raise ValueError("the archive says more than it may have")
        found = self._file.read(size)
        self._left -= len(found)
        return found


def unpack(archive: IO[bytes], directory: Path, suffix: str) -> FetchedFiles:
    """Writes the files of a tar.gz. ``suffix``: of the names of what cannot have its own place.

    Raises ValueError for an archive that no task has made in good faith, OSError when a file cannot be
    written.
    """
    report = FetchedFiles()
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with tarfile.open(fileobj=_Bounded(archive), mode="r|") as tar:
            for count, member in enumerate(tar):
                if count >= returned.MOST_FILES:
                    raise ValueError(f"more than {returned.MOST_FILES} files")
                content = tar.extractfile(member) if member.isreg() else None
                if content is None:
                    raise ValueError(f"{member.name!r} is not a file")
                before = member.pax_headers.get(returned.BEFORE, "")
                _place(
                    root, _parts(member.name), content.read(), member.mode, before, suffix, report
                )
    finally:
        os.close(root)
    return report


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part or len(part) > PART_CHARS for part in parts):
        raise ValueError(f"{name!r} is not a file name inside the directory")
    return parts


def _place(
    root: int,
    parts: list[str],
    content: bytes,
    mode: int,
    before: str,
    suffix: str,
    report: FetchedFiles,
) -> None:
    name = "/".join(parts)
    with _folder(root, parts[:-1], suffix) as (folder, found):
        last = parts[-1]
        here = _hash(folder, last)
        new = hashlib.sha256(content).hexdigest()
        moved = found != parts[:-1]
        if here == new:
            report.same.append(name)
            return
        if moved or not (here is None or (before and here == before)):
            # A directory's name is another already, so the file needs none.
            last = last if moved else last[: PART_CHARS - len(suffix)] + suffix
            report.kept[name] = "/".join([*found, last])
        elif here is None:
            report.new.append(name)
        else:
            report.changed.append(name)
        _write(folder, last, content, mode)


@contextlib.contextmanager
def _folder(root: int, parts: list[str], suffix: str) -> Iterator[tuple[int, list[str]]]:
    """The directory below ``root``, made where it is missing, and its names: another one where something else
    than a directory has the name."""
    folder, found = os.dup(root), []
    try:
        for part in parts:
            name = part if _is_folder(folder, part) else part[: PART_CHARS - len(suffix)] + suffix
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
            found.append(name)
        yield folder, found
    finally:
        os.close(folder)


def _is_folder(folder: int, name: str) -> bool:
    """Whether it is a directory, or can become one."""
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _hash(folder: int, name: str) -> str | None:
    """The SHA-256 of the file; None: there is none; empty: something else has the name."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            return ""
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _write(folder: int, name: str, content: bytes, mode: int) -> None:
    aside = f".det-{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    # The usual rights of a new file here; only whether it can be executed comes with it.
    descriptor = os.open(aside, flags, 0o777 if mode & 0o100 else 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as target:
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside, dir_fd=folder)
        raise
