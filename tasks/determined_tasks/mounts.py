"""Shows a leg's processes directories of the machine under other paths (``bind_mounts``), on Linux.

The process gets a mount namespace between its fork and its program; if it is not root, also a user namespace
in which its ids stay as they are. A container path that the machine lacks is made in a *layer*: a directory
in memory, mounted over the nearest existing directory, with all entries of that directory mounted inside. So
nothing is made on the machine. The root directory is replaced in the same way (as bubblewrap does).

Paths are looked up with the rights of the leg's account, so a mount shows only what the account could open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import posixpath
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determined.common.forking import process as forked
from determined_tasks import identity
from determined_tasks.containers.settings import WORKDIR
from determined_tasks.containers.sizes import size_in_bytes
from determined_tasks.identity import Identity

SHARED_MEMORY = "/dev/shm"
CLOSED = ("/proc", "/sys", "/dev")
"""Directories of the kernel: nothing is mounted there."""
FOLDER, FILE = "folder", "file"
"""Where a directory and a file are mounted before they are moved to their places."""
MOST_ENTRIES = 4096
"""Each entry of a directory under a layer is a mount."""
TRY_SECONDS = 10.0

_PATH = os.O_PATH | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _MOVE = 0x1, 0x2, 0x4, 0x20, 0x1000, 0x2000
_REC, _UNBINDABLE, _PRIVATE, _SLAVE = 0x4000, 1 << 17, 1 << 18, 1 << 19
_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_CAPABILITY_VERSION = 0x20080522
_KEPT_FLAGS = {os.ST_NOSUID: _NOSUID, os.ST_NODEV: _NODEV, os.ST_NOEXEC: 0x8}
_PROPAGATION = {
    "private": _PRIVATE,
    "rprivate": _PRIVATE | _REC,
    "slave": _SLAVE,
    "rslave": _SLAVE | _REC,
}

# Loaded once, before any fork.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class MountsError(Exception):
    """What the configuration wants mounted cannot be; the message names the field and the cause."""


@dataclass(frozen=True)
class Bind:
    """``target``: an absolute path. ``field``: where the configuration has it."""

    source: str
    target: str
    read_only: bool
    propagation: str
    field: str


@dataclass(frozen=True)
class Mounts:
    """What a leg's processes get to see. ``stage``: a directory of the leg that :meth:`require` makes, and in
    which mounts are made ready.
    ``shm_size``: bytes of ``/dev/shm``; None: the machine's.
    """

    workdir: Path
    stage: Path
    binds: tuple[Bind, ...] = ()
    shm_size: int | None = None

    def on_machine(self, path: str) -> Path:
        """Where the machine has what the leg's processes find at ``path``; a relative one is below the
        working directory.
        """
        found = posixpath.normpath(self.workdir / path)
        if _is_within(found, WORKDIR):
            found = str(self.workdir) + found.removeprefix(WORKDIR)
        # The innermost is the last one.
        for bind in reversed(self.binds):
            if _is_within(found, bind.target):
                return Path(bind.source + found.removeprefix(bind.target))
        return Path(found)

    def require(self, account: Identity | None, agent_id: str) -> None:
        """Raises MountsError for a directory that is not there, or that the account cannot reach."""
        (self.stage / FOLDER).mkdir(parents=True)
        (self.stage / FILE).touch()
        self._failure.touch(0o600)
        for bind in self.binds:
            with identity.files_of(account):
                try:
                    os.close(os.open(bind.source, _PATH))
                except OSError as error:
                    raise MountsError(
                        f"{bind.field}.host_path: {bind.source!r} cannot be mounted on agent {agent_id}:"
                        f" {error.strerror}"
                    ) from None

    def enter(self, account: Identity | None, folder: Path) -> None:
        """Makes the mounts for this process, which has one thread, and everything that it starts, and changes
        to ``folder``.

        After it paths mean what the user wants: root becomes the account next, without an import before.
        Where the kernel refuses namespaces, stderr says so and nothing is mounted; another failure ends the
        process, and :meth:`failure` has the reason.
        """
        # Opened before paths mean something else.
        told = os.open(self._failure, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _own_namespace()
        except MountsError as error:
            _say(f"bind_mounts and resources.shm_size are not heeded: {error}")
            os.close(told)
            return
        before = os.umask(0o022)
        try:
            _Entering(self, account).run()
            with identity.files_of(account):
                os.chdir(folder)
            _drop_rights()
        except (MountsError, OSError) as error:
            with contextlib.suppress(OSError):
                os.write(told, str(error).encode(errors="backslashreplace"))
            os._exit(1)
        os.close(told)
        os.umask(before)

    def failure(self) -> str | None:
        """Why the process of :meth:`enter` ended there; None: it did not."""
        with contextlib.suppress(OSError):
            return self._failure.read_text() or None
        return None

    @property
    def _failure(self) -> Path:
        return self.stage / "failure"


def of(
    config: Mapping[str, Any], entrypoint: str | list[str], workdir: Path, stage: Path
) -> Mounts | None:
    """What a leg's configuration asks for; None: nothing.

    The working directory is :data:`WORKDIR` as well if there are mounts, or if configuration or entrypoint
    name that path. Raises MountsError.
    """
    shm_size = (config.get("resources") or {}).get("shm_size")
    given = config.get("bind_mounts") or ()
    if not given and shm_size is None and WORKDIR not in json.dumps([config, entrypoint]):
        return None
    workdir = Path(os.path.realpath(workdir))
    binds = []
    for number, mount in enumerate(given):
        name = f"bind_mounts[{number}]"
        target = posixpath.normpath(posixpath.join(WORKDIR, mount["container_path"]))
        source, read_only = mount["host_path"], bool(mount.get("read_only"))
        is_protected = read_only and not _is_closed(target) and Path(source).exists()
        if posixpath.normpath(source) == target and not is_protected:
            continue  # it is there already
        if _is_closed(target):
            raise MountsError(
                f"{name}.container_path: nothing can be mounted at {target!r}: choose another path, for"
                " example one below /mnt"
            )
        if _is_within(target, WORKDIR):
            target = posixpath.normpath(f"{workdir}/{posixpath.relpath(target, WORKDIR)}")
        propagation = mount.get("propagation") or "rprivate"
        binds.append(Bind(source, target, read_only, propagation, name))
    # What lies below another one's path comes after it.
    binds.sort(key=lambda bind: bind.target.count("/"))
    return Mounts(
        workdir, stage, tuple(binds), None if shm_size is None else size_in_bytes(shm_size)
    )


def _is_closed(path: str) -> bool:
    return path == "/" or any(_is_within(path, one) for one in CLOSED)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


class _Entering:
    """The mounts of one process, which may be root's for another account.

    What this account could change at any time, the meaning of paths above all, decides nothing: the account's
    own rights look things up, and mounts go from descriptor to descriptor, by way of :attr:`stage`.
    """

    def __init__(self, mounts: Mounts, account: Identity | None) -> None:
        self.mounts = mounts
        self.account = account
        self.is_root = os.geteuid() == 0
        self.stage = str(mounts.stage)
        # Directories of layers, where places may be made, by their paths.
        self.own: dict[str, int] = {}
        # The user's own directories: what is written there stays there.
        self.users = [str(mounts.workdir)]

    def run(self) -> None:
        _mount(None, "/", _REC | _SLAVE)
        paths = [WORKDIR, *(bind.target for bind in self.mounts.binds)]
        if any(not os.path.lexists("/" + path.split("/")[1]) for path in paths):
            with _named("a place in the root directory"):
                self._cover("/")
        # By a descriptor, because a mount may hide it; opened now, because the root directory is another.
        self.stage = f"/proc/self/fd/{os.open(self.mounts.stage, _PATH | os.O_DIRECTORY)}"
        # All before the first is mounted: each is the machine's, whatever the others hide.
        workdir = os.open(self.mounts.workdir, _PATH)
        sources = [self._open(bind) for bind in self.mounts.binds]
        for bind, source in zip(self.mounts.binds, sources, strict=True):
            with _named(f"{bind.field}.container_path: {bind.target!r}"):
                self._bind(source, bind.target, bind.read_only, bind.propagation)
            self.users.append(bind.target)
        with _named(WORKDIR):
            self._bind(workdir, WORKDIR, False, "rprivate")
        if self.mounts.shm_size is not None:
            options = f"size={self.mounts.shm_size},mode=1777"
            with _named("resources.shm_size"):
                _mount("tmpfs", SHARED_MEMORY, _NOSUID | _NODEV, "tmpfs", options)

    def _open(self, bind: Bind) -> int:
        with _named(f"{bind.field}.host_path: {bind.source!r}"), identity.files_of(self.account):
            return os.open(bind.source, _PATH)

    def _bind(self, source: int, target: str, read_only: bool, propagation: str) -> None:
        is_folder = stat.S_ISDIR(os.fstat(source).st_mode)
        place = self._place(target, is_folder)
        stage = f"{self.stage}/{FOLDER if is_folder else FILE}"
        _mount(f"/proc/self/fd/{source}", stage, _BIND | _REC)
        if propagation in _PROPAGATION:
            _mount(None, stage, _PROPAGATION[propagation])
        if read_only:
            _make_read_only(stage)
        _mount(stage, f"/proc/self/fd/{place}", _MOVE)
        os.close(source)

    def _place(self, path: str, is_folder: bool) -> int:
        """An open directory or file to mount on, at ``path``."""
        with contextlib.suppress(FileNotFoundError), identity.files_of(self.account):
            return _checked(os.open(path, _PATH))
        with identity.files_of(self.account):
            above = Path(path).parent
            while not above.exists():
                above = above.parent
            real = os.path.realpath(above)
        if any(_is_within(real, one) for one in self.users):
            with contextlib.suppress(OSError), identity.files_of(self.account):
                Path(path if is_folder else posixpath.dirname(path)).mkdir(
                    parents=True, exist_ok=True
                )
                if not is_folder:
                    Path(path).touch()
                return _checked(os.open(path, _PATH))
        if real not in self.own:
            self._cover(real)
        place = self.own[real]
        *folders, last = Path(path).relative_to(above).parts
        for name in [*folders, last] if is_folder else folders:
            _make(name, place, is_folder=True)
            place = os.open(name, _LISTED, dir_fd=place)
            real = posixpath.join(real, name)
            self.own[real] = place
        if is_folder:
            return place
        _make(last, place, is_folder=False)
        return os.open(last, _PATH, dir_fd=place)

    def _cover(self, folder: str) -> None:
        """Mounts a directory in memory over ``folder``, with everything in it that is there."""
        with identity.files_of(self.account):
            covered = os.open(folder, _LISTED)
            names = os.listdir(covered)  # noqa: PTH208
        if folder != "/":
            _checked(covered)
        if len(names) > MOST_ENTRIES:
            raise MountsError(
                f"{folder} has {len(names)} entries, and a place can be made beside {MOST_ENTRIES} at most:"
                " choose a path in another directory, or make this one on the machine"
            )
        stage = f"{self.stage}/{FOLDER}"
        _mount("tmpfs", stage, _NOSUID | _NODEV, "tmpfs", "mode=755")
        # Else what is bound next may hold it again.
        _mount(None, stage, _UNBINDABLE)
        layer = os.open(stage, _LISTED)
        for name in names:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                with identity.files_of(self.account):
                    entry = os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=covered)
                _show(entry, name, layer)
        found = os.fstat(covered)
        if self.is_root:
            os.fchown(layer, found.st_uid, found.st_gid)
        os.fchmod(layer, stat.S_IMODE(found.st_mode) | (0 if self.is_root else stat.S_IRWXU))
        _mount(None, stage, _PRIVATE)
        if folder == "/":
            _replace_root(stage)
        else:
            _mount(stage, f"/proc/self/fd/{covered}", _MOVE)
        os.close(covered)
        self.own[folder] = layer


def _checked(place: int) -> int:
    """The open place, if something may be mounted there. A link may have led to it."""
    found = os.readlink(f"/proc/self/fd/{place}")  # noqa: PTH115
    if _is_closed(found):
        raise PermissionError(errno.EPERM, f"nothing can be mounted at {found!r}")
    return place


def _show(entry: int, name: str, layer: int) -> None:
    """Shows the open ``entry`` as ``name`` in ``layer``: a link as a link, everything else mounted. Its owner
    may exchange what has that name meanwhile. Closes it."""
    try:
        mode = os.fstat(entry).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=entry), name, dir_fd=layer)
            return
        _make(name, layer, is_folder=stat.S_ISDIR(mode))
        _mount(f"/proc/self/fd/{entry}", f"/proc/self/fd/{layer}/{name}", _BIND | _REC)
    finally:
        os.close(entry)


def _make(name: str, folder: int, *, is_folder: bool) -> None:
    if is_folder:
        os.mkdir(name, 0o755, dir_fd=folder)
    else:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder))


def _replace_root(layer: str) -> None:
    assert _libc is not None
    os.chdir(layer)
    # Both roots lie on each other then, and the one to be detached is on top.
    _check(_libc.pivot_root(b".", b"."))
    _check(_libc.umount2(b".", _DETACH))
    os.chdir("/")


def _make_read_only(path: str) -> None:
    """With what is mounted below it, where the kernel can (5.12)."""
    assert _libc is not None
    set_readonly = (ctypes.c_uint64 * 4)(_RDONLY, 0, 0, 0)
    done = _libc.syscall(
        _MOUNT_SETATTR,
        -100,
        os.fsencode(path),
        _AT_RECURSIVE,
        ctypes.byref(set_readonly),
        ctypes.c_size_t(ctypes.sizeof(set_readonly)),
    )
    if done == 0:
        return
    flags = os.statvfs(path).f_flag
    kept = sum(ours for theirs, ours in _KEPT_FLAGS.items() if flags & theirs)
    _mount(None, path, _REMOUNT | _BIND | _RDONLY | kept)


def _own_namespace() -> None:
    uid, gid, is_root = os.getuid(), os.getgid(), os.geteuid() == 0
    assert _libc is not None, "only Linux has mount namespaces"
    with _named("a mount namespace"):
        _check(_libc.unshare(_NEWNS if is_root else _NEWNS | _NEWUSER))
        if not is_root:
            # Without it the kernel refuses the map of groups.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _drop_rights() -> None:
    """Gives up the capabilities that a new user namespace has given this process."""
    if os.getuid() == 0:
        return
    assert _libc is not None
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))
    # The kernel has taken both back with the change of rights.
    forked.be_dumpable()
    forked.die_with_parent()


def join(pid: int) -> None:
    """Shows this process, which has one thread, what process ``pid`` sees after :meth:`Mounts.enter`.

    Raises OSError.
    """
    assert _libc is not None
    kinds = (_NEWNS,) if os.geteuid() == 0 else (_NEWUSER, _NEWNS)
    names = {_NEWNS: "mnt", _NEWUSER: "user"}
    opened = [(os.open(f"/proc/{pid}/ns/{names[kind]}", os.O_RDONLY), kind) for kind in kinds]
    for descriptor, kind in opened:
        _check(_libc.setns(descriptor, kind))
        os.close(descriptor)


def refused() -> str | None:
    """Why the kernel does not let this account mount anything; None: it does. Tries it, in a process."""
    if _libc is None:
        return "only Linux can mount directories for one process"
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-m", "determined_tasks.mounts"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TRY_SECONDS,
            check=False,
            text=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    return tried.stdout.strip().rpartition("\n")[2] or f"exit code {tried.returncode}"


def _try() -> None:
    try:
        _own_namespace()
        _mount(None, "/", _REC | _SLAVE)
        _mount("tmpfs", SHARED_MEMORY, _NOSUID | _NODEV, "tmpfs", "size=4096")
    except MountsError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"mount: {error.strerror}")


def _mount(
    source: str | None, target: str, flags: int, kind: str | None = None, options: str | None = None
) -> None:
    assert _libc is not None
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    extra = None if options is None else options.encode()
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), extra))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MountsError(f"{what} cannot be mounted: {error.strerror or error}") from error


if __name__ == "__main__":
    _try()
