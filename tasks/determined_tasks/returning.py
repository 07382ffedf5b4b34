"""Sends the files that a task has changed back to its owner, by the service.

The files are read by a process of the task's account (``python -m determined_tasks.returning``), after the
task's own processes have ended: a link that the task has laid leads to nothing that the account may not read,
and no link is followed at all, also when another process of the account lays one meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from determined.common.api import Session, errors
from determined.common.backoff import Backoff
from determined.common.wire import paths, returned
from determined.common.wire.legs import LegSpec
from determined.common.wire.returned import Returned
from determined.storage import beneath
from determined_tasks import identity
from determined_tasks.identity import Identity
from determined_tasks.supervision import write_private

NOT_RETURNED = frozenset(
    ("__pycache__", ".cache", ".venv", ".git", ".hg", ".svn", ".ipynb_checkpoints", "node_modules")
)
"""Names of directories whose contents others make again, or that belong to the sender."""
RECORD = "files-before.json"
RETRY_SECONDS = (0.1, 5.0)
NAMED = 10
_Before = dict[str, list[Any]]


def wanted(spec: LegSpec) -> bool:
    """True if the task's files come back. A gang's do not, as each node has different ones."""
    return bool(spec.config.get(returned.FIELD)) and spec.nodes == 1


def remember(root: Path, workdir: Path) -> None:
    """Record the files as they are before the task runs, in the allocation's directory ``root``."""
    found: _Before = {}
    for name, status in _files(workdir):
        with contextlib.suppress(OSError), _opened(workdir, name) as file:
            found[name] = [*_version(status), hashlib.file_digest(file, "sha256").hexdigest()]
    write_private(root / RECORD, json.dumps(found).encode())


def _version(status: os.stat_result) -> list[int]:
    # No program can set the time of the last change of a file's facts.
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _files(workdir: Path) -> Iterator[tuple[str, os.stat_result]]:
    for folder, folders, names, descriptor in os.fwalk(workdir):
        folders[:] = sorted(set(folders) - NOT_RETURNED)
        for name in sorted(names):
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield Path(folder, name).relative_to(workdir).as_posix(), status


@contextlib.contextmanager
def _opened(workdir: Path, name: str) -> Iterator[io.BufferedReader]:
    """The regular file, behind no link. Raises OSError."""
    with beneath.opened(workdir, name) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file any more", name)
        with open(descriptor, "rb", closefd=False) as file:
            yield file


def send(
    root: Path,
    workdir: Path,
    account: Identity | None,
    spec: LegSpec,
    service: Session,
    say: Callable[[str, str], None],
) -> None:
    """Send new and changed files, and tell the service when all have arrived; waits while the service is
    away. Files that cannot be sent are named in the log."""
    if not (root / RECORD).exists():
        return
    try:
        report = _send(root, workdir, account, spec, service)
    except errors.BadRequestException as error:
        say(f"the files of this task do not come back: {error}", "ERROR")
        return
    except (OSError, ValueError) as error:
        say(f"the files of this task cannot be read: {error}", "ERROR")
        return
    for remark in report.remarks:
        say(remark, "WARNING")


def _send(
    root: Path, workdir: Path, account: Identity | None, spec: LegSpec, service: Session
) -> Returned:
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "determined_tasks.returning", str(workdir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        cwd="/",
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=account.groups if account else None,
        umask=identity.UMASK,
    )
    assert process.stdin and process.stdout and process.stderr
    try:
        with contextlib.suppress(BrokenPipeError), process.stdin as given:
            given.write((root / RECORD).read_bytes())
        size = pieces = 0
        where = paths.TASK_FILES.format(allocation_id=spec.allocation_id)
        while piece := process.stdout.read(returned.PIECE_BYTES):
            if (size := size + len(piece)) > 2 * returned.MOST_BYTES:
                raise ValueError(f"more than {2 * returned.MOST_BYTES} bytes")
            _insist(service, f"{where}/{pieces}", piece)
            pieces += 1
        said = process.stderr.read(1 << 20).decode(errors="replace").strip()
        # Whoever reaps the supervisor's children may have been first.
        process.wait()
    finally:
        process.kill()
    try:
        remarks = json.loads(said.splitlines()[-1])["remarks"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise ValueError(
            said.rpartition("\n")[2][-300:] or "the process that reads them was killed"
        ) from None
    report = Returned(
        pieces,
        size,
        [str(one)[: returned.REMARK_CHARS] for one in remarks][: returned.MOST_REMARKS],
    )
    _insist(service, where, report.to_json())
    return report


def _insist(service: Session, path: str, content: bytes | dict[str, Any]) -> None:
    """Sends it until the service has it. Raises BadRequestException when it is refused."""
    backoff = Backoff(*RETRY_SECONDS)
    while True:
        try:
            if isinstance(content, bytes):
                service.put(path, content=content)
            else:
                service.post(path, json=content)
            return
        except errors.BadRequestException:
            raise
        except errors.APIException:
            time.sleep(backoff.next_delay())


def pack(workdir: Path, before: _Before, out: IO[bytes]) -> list[str]:
    """Write the archive of new and changed files; returns the left-out ones, in words."""
    changed = []
    for name, status in _files(workdir):
        known = before.get(name)
        if known is None or known[:4] != _version(status):
            mode = status.st_mode & 0o777
            changed.append((status.st_size, name, mode, known[4] if known else ""))
    # The small ones first: results rather than checkpoints, when not all can come.
    changed.sort()
    total = count = 0
    left_out: list[str] = []
    with (
        gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as zipped,
        tarfile.open(fileobj=zipped, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for size, name, mode, hash_ in changed:
            if count >= returned.MOST_FILES or total + size > returned.MOST_BYTES:
                left_out.append(f"{name} ({_mib(size)})")
                continue
            try:
                with _opened(workdir, name) as file:
                    content = file.read(size)
            except OSError as error:
                left_out.append(f"{name} ({error.strerror or error})")
                continue
            if hash_ and hashlib.sha256(content).hexdigest() == hash_:
                continue  # written again, as it was
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            info.pax_headers = {returned.BEFORE: hash_}
            tar.addfile(info, io.BytesIO(content))
            total, count = total + len(content), count + 1
    return _words(left_out)


def _words(left_out: list[str]) -> list[str]:
    if not left_out:
        return []
    named = ", ".join(left_out[:NAMED])
    more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
    return [
        f"these files do not come back: {named}{more}. At most {returned.MOST_FILES} files and"
        f" {returned.MOST_BYTES >> 20} MiB do: have the program write the rest to a storage, or to a"
        " directory of the machine (bind_mounts)"
    ]


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def main() -> None:
    """The archive of the directory on standard output, remarks in JSON on standard error."""
    before = json.load(sys.stdin)
    remarks = pack(Path(sys.argv[1]), before, sys.stdout.buffer)
    sys.stdout.flush()
    # A name need not be text.
    shown = [one.encode("utf-8", "backslashreplace").decode() for one in remarks]
    print(json.dumps({"remarks": shown}), file=sys.stderr)


if __name__ == "__main__":
    main()
