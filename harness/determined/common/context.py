"""Packs a model directory for upload: which files are sent, and how.

``.detignore`` files (gitignore syntax, in any directory, each for the files below it) leave files out. A
few names are left out unless a ``.detignore`` takes them back in. Symbolic links are followed, because
their targets do not exist where the trial runs. The same tree gives the same list, in the same order.
"""

from __future__ import annotations

import base64
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pathspec

from determined.common.printable import one_line

logger = logging.getLogger("determined.context")

IGNORE_FILE = ".detignore"

# What editors, version control and Python leave behind; a user's own rules may take them back in
# (`!.git`).
BUILT_IN_IGNORES = (
    "__pycache__/",
    "*.py[co]",
    "*$py.class",
    ".git",
    ".hg",
    ".svn",
    ".vscode",
    ".idea",
    ".mypy_cache/",
    ".ruff_cache/",
    ".pytest_cache/",
    ".ipynb_checkpoints/",
    ".DS_Store",
    ".terraform*",
    "terraform.tfstate*",
    "terraform_data",
    "/shared_fs",
    ".env*",
)
SECRETS = ".env"
"""Files and directories whose names begin like this often hold passwords."""

# Base64 of it, with the rest of the request, stays below 128 MiB.
LIMIT_BYTES = 95 * 1024 * 1024

NAMED = 3
"""So many files are named in a warning."""

_REGULAR = ord("0")
_DIRECTORY = ord("5")


class ContextError(ValueError):
    """The model directory cannot be sent; the message is meant for the user."""


@dataclass(frozen=True)
class ContextItem:
    """A file or directory of the context.

    ``path`` is relative, with ``/``; ``content`` is None for a directory. ``mode`` is ``st_mode``.
    """

    path: str
    mode: int
    mtime: int
    content: bytes | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The JSON of the REST API. All files belong to uid 0, whoever sends them."""
        return {
            "path": self.path,
            "type": _DIRECTORY if self.content is None else _REGULAR,
            "content": base64.b64encode(self.content or b"").decode("ascii"),
            "mode": self.mode,
            "mtime": str(self.mtime),
            "uid": 0,
            "gid": 0,
        }


@dataclass(frozen=True)
class _Rules:
    """The ignore rules of one directory, and of its parent directories."""

    base: str
    spec: pathspec.GitIgnoreSpec
    outer: _Rules | None = None
    secrets: list[str] = field(default_factory=list)
    """Of the built-in rules: what they alone left out, and the user may miss."""

    def ignores(self, path: str, is_dir: bool) -> bool:
        """Whether ``path`` is left out; the innermost directory with a matching rule decides."""
        inside = path[len(self.base) + 1 :] if self.base else path
        found = self.spec.check_file(inside + "/" if is_dir else inside).include
        if found is not None:
            if found and self.outer is None and path.rpartition("/")[2].startswith(SECRETS):
                self.secrets.append(path)
            return found
        return self.outer is not None and self.outer.ignores(path, is_dir)


def pack(
    root: str | os.PathLike[str] | None,
    includes: Iterable[str | os.PathLike[str]] = (),
    limit: int = LIMIT_BYTES,
) -> list[ContextItem]:
    """Everything to send of ``root`` (a directory, or one file) and of ``includes``.

    The contents of the directory ``root`` land at the top of the trial's working directory. An include
    lands there as a whole, under its own name. Items are sorted by path, a directory before what is in it.

    Raises:
        ContextError: a path does not exist or cannot be read, a name is not UTF-8, two sources give the
            same path, a link leads in a circle, or the files are more than ``limit`` bytes together.
    """
    found: dict[str, tuple[Path, os.stat_result]] = {}
    secrets: list[str] = []
    if root is not None:
        top = _existing(root)
        if top.is_dir():
            _add(found, _walk(top, "", _built_in(secrets=secrets), _Trail(top)))
        else:
            _add(found, _one(top, top.name))
    for include in includes:
        path = _existing(include)
        name = path.resolve().name
        if path.is_dir():
            _add(found, [(name, path, path.stat())])
            _add(found, _walk(path, name, _built_in(name, secrets), _Trail(path)))
        else:
            _add(found, _one(path, name))
    if secrets:
        logger.warning(
            "%s: not sent, because such files often hold passwords; in %s, a line !%s sends it, a line %s "
            "ends this warning",
            _named(secrets),
            IGNORE_FILE,
            *[one_line(secrets[0].rpartition("/")[2])] * 2,
        )
    _check_size(found, limit)
    # "/" sorts before what a name may begin with, so that "a/x" comes right after "a".
    items = [_read(*item) for item in sorted(found.items(), key=lambda item: item[0].split("/"))]
    if (scripts := [item.path for item in items if _is_a_windows_script(item)]) != []:
        logger.warning(
            "%s: the lines end in CR LF, as on Windows, and shells take the CR for part of the last word; "
            "save it with LF (sed -i 's/\\r$//' FILE)",
            _named(scripts),
        )
    return items


def _named(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(one_line(one) for one in paths[:NAMED]) + more


def _is_a_windows_script(item: ContextItem) -> bool:
    """True if a shell or the kernel would read the file, and its lines end in CR LF."""
    if not item.content:
        return False
    first = item.content.partition(b"\n")[0]
    if item.path.endswith(".sh") or (first.startswith(b"#!") and b"sh" in first):
        return b"\r\n" in item.content
    return first.startswith(b"#!") and first.endswith(b"\r") and bool(item.mode & stat.S_IXUSR)


def regular_files(root: Path) -> Iterator[tuple[str, Path, int]]:
    """(name, path, size) of each file of ``root`` that would be sent, without a limit on the size.

    Raises ContextError as :func:`pack` does.
    """
    for name, path, status in _walk(root, "", _built_in(), _Trail(root)):
        _require_text(name, path)
        if stat.S_ISREG(status.st_mode):
            yield name, path, status.st_size


def is_ignored(path: Path, top: Path, ignore_files: Sequence[str] = (IGNORE_FILE,)) -> bool:
    """Whether the ignore files of ``top``, or of a directory between it and ``path``, leave that file out.

    ``ignore_files``: their names; in one directory, the later ones win. Raises ContextError if one cannot be
    read.
    """
    rules, folder = _built_in(), top
    parts = path.relative_to(top).parts
    for depth, part in enumerate(parts, 1):
        prefix = "/".join(parts[: depth - 1])
        for name in ignore_files:
            if (folder / name).is_file():
                rules = _Rules(prefix, _read_rules(folder / name), rules)
        if rules.ignores("/".join(parts[:depth]), depth < len(parts)):
            return True
        folder /= part
    return False


def to_json(items: Iterable[ContextItem]) -> list[dict[str, Any]]:
    """``modelDefinition`` of the REST API."""
    return [item.to_json() for item in items]


_Entry = tuple[str, Path, os.stat_result]


def _add(found: dict[str, tuple[Path, os.stat_result]], entries: Iterable[_Entry]) -> None:
    for name, path, status in entries:
        _require_text(name, path)
        if name in found:
            raise ContextError(
                f"{name!r} would be sent twice: from {found[name][0]} and from {path}"
            )
        found[name] = (path, status)


def _require_text(name: str, path: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ContextError(
            f"{_shown(path)}: its name is not UTF-8; rename it or put it into {IGNORE_FILE} (with ? or * for"
            " what is not text)"
        ) from None


def _shown(path: Path) -> str:
    """``path`` with the bytes that are not text as ``\\xfc``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _existing(path: str | os.PathLike[str]) -> Path:
    found = Path(path).expanduser()
    if not found.exists():
        raise ContextError(f"{path}: no such file or directory")
    return found


def _built_in(base: str = "", secrets: list[str] | None = None) -> _Rules:
    spec = pathspec.GitIgnoreSpec.from_lines(BUILT_IN_IGNORES)
    return _Rules(base, spec, secrets=[] if secrets is None else secrets)


class _Trail:
    """The resolved directories from the root down, to notice a link that leads back up."""

    def __init__(self, path: Path, outer: frozenset[str] = frozenset()) -> None:
        real = os.path.realpath(path)
        if real in outer:
            raise ContextError(
                f"{_shown(path)}: this link leads in a circle; put it into {IGNORE_FILE}"
            )
        self.seen = outer | {real}


def _walk(directory: Path, prefix: str, rules: _Rules, trail: _Trail) -> Iterator[_Entry]:
    ignore_file = directory / IGNORE_FILE
    if ignore_file.is_file():
        rules = _Rules(prefix, _read_rules(ignore_file), rules)
    try:
        paths = sorted(directory.iterdir())
    except OSError as error:
        raise ContextError(f"{_shown(directory)}: {error.strerror}") from error
    for path in paths:
        sent_as = f"{prefix}/{path.name}" if prefix else path.name
        try:
            status = path.stat()
        except OSError:
            if rules.ignores(sent_as, False):
                continue
            raise ContextError(
                f"{_shown(path)}: this link leads nowhere; remove it or put it into {IGNORE_FILE}"
            ) from None
        if stat.S_ISDIR(status.st_mode):
            if not rules.ignores(sent_as, True):
                yield sent_as, path, status
                yield from _walk(path, sent_as, rules, _Trail(path, trail.seen))
        elif stat.S_ISREG(status.st_mode) and not rules.ignores(sent_as, False):
            yield sent_as, path, status
        # Sockets, pipes and devices mean nothing on another machine.


def _read_rules(path: Path) -> pathspec.GitIgnoreSpec:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ContextError(f"{_shown(path)}: {error.strerror}") from error
    try:
        # Some editors begin a file with a mark, which would be part of the first rule.
        lines = data.decode("utf-8-sig").splitlines()
        return pathspec.GitIgnoreSpec.from_lines(lines)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ContextError(
            f"{_shown(path)}: line {line} is not UTF-8; save the file as UTF-8"
        ) from None
    except ValueError as error:
        raise ContextError(f"{_shown(path)}: {error}") from error


def _one(path: Path, name: str) -> list[_Entry]:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ContextError(f"{_shown(path)}: neither a file nor a directory")
    return [(name, path, status)]


def _check_size(found: dict[str, tuple[Path, os.stat_result]], limit: int) -> None:
    sizes = {
        name: status.st_size for name, (_, status) in found.items() if stat.S_ISREG(status.st_mode)
    }
    total = sum(sizes.values())
    if total <= limit:
        return
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    named = ", ".join(f"{name} ({_mib(size)})" for name, size in largest)
    raise ContextError(
        f"the model directory has {_mib(total)}, but at most {_mib(limit)} can be sent; the largest"
        f" files are {named}: leave data out with {IGNORE_FILE} (gitignore syntax)"
    )


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.1f} MiB"


def _read(name: str, source: tuple[Path, os.stat_result]) -> ContextItem:
    path, status = source
    content = None
    if stat.S_ISREG(status.st_mode):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ContextError(f"{_shown(path)}: {error.strerror}") from error
    return ContextItem(name, status.st_mode, int(status.st_mtime), content)
