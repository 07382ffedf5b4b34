"""The files of a working directory, kept in a storage: what changed is copied again and again."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from determined import errors
from determined.storage import StorageManager

MOST_BYTES = 2 << 30
MOST_FILES = 20_000
NOT_KEPT = frozenset({"__pycache__", ".ipynb_checkpoints", ".cache", ".venv", "node_modules"})
"""Names of directories whose contents others make again."""
# Some storages take a name that begins with a dot for a file that is being written.
_SIGN = "="
_INDEX = "index.json"
_FILES = "files"


def _stored(name: str) -> str:
    path = PurePosixPath(name)
    return str(path.with_name(_SIGN + path.name))


@dataclass
class KeptFiles:
    """Copies the files below ``directory`` to ``key``. ``say`` gets lines for the log. ``refusal`` is asked
    before anything is copied: why that number of bytes may not be kept; empty: they may; None: nobody
    answered, they are kept, and it is asked again.

    A file is there with all its bytes or as it was; the list of those that belong to the directory comes
    last. Symbolic links are not kept.
    """

    storage: StorageManager
    key: str
    directory: Path
    say: Callable[[str], None]
    refusal: Callable[[int], str | None]
    _counted: bool = False
    _seen: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _problem: str = ""

    def save(self) -> None:
        """Copy new and changed files. A failure is printed once, and the copy tried again later."""
        try:
            problem = self._save()
        except (errors.StorageError, OSError) as error:
            problem = f"the files of this notebook cannot be kept now: {error}"
        if problem and problem != self._problem:
            self.say(f"warning: {problem}")
        self._problem = problem

    def _save(self) -> str:
        found, left_out = self._look()
        changed = found != self._seen
        if changed or not self._counted:
            refused = self.refusal(sum(size for _, size, _ in found.values()))
            self._counted = refused is not None
            if refused:
                return f"the files of this notebook are kept as they were: {refused}"
        if changed:
            self._copy(found)
        if not left_out:
            return ""
        return (
            f"{left_out} and perhaps others are not kept after this notebook's end: at most {MOST_FILES}"
            f" files and {MOST_BYTES >> 30} GiB are; a directory of yours (bind_mounts) holds more"
        )

    def _copy(self, found: dict[str, tuple[int, int, int]]) -> None:
        for name, version in found.items():
            if self._seen.get(name) == version:
                continue
            try:
                self.storage.put(f"{self.key}/{_FILES}/{_stored(name)}", self.directory / name)
            except errors.StorageError:
                if (self.directory / name).exists():
                    raise
                continue  # it has gone meanwhile
        index = {name: version[2] for name, version in found.items()}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(index, file)
            file.flush()
            self.storage.put(f"{self.key}/{_INDEX}", Path(file.name))
        for name in self._seen.keys() - found.keys():
            self.storage.discard(f"{self.key}/{_FILES}/{_stored(name)}")
        self._seen = found

    def _look(self) -> tuple[dict[str, tuple[int, int, int]], str]:
        """The files, with time of change, bytes and mode; and the first that is too much."""
        found: dict[str, tuple[int, int, int]] = {}
        size = 0
        for path in self._paths():
            try:
                status = path.lstat()
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            name = path.relative_to(self.directory).as_posix()
            size += status.st_size
            if size > MOST_BYTES or len(found) >= MOST_FILES:
                return found, name
            found[name] = (status.st_mtime_ns, status.st_size, stat.S_IMODE(status.st_mode))
        return found, ""

    def _paths(self) -> Iterator[Path]:
        for folder, folders, names in os.walk(self.directory):
            folders[:] = sorted(set(folders) - NOT_KEPT)
            for name in sorted(names):
                yield Path(folder, name)

    def restore(self, key: str) -> None:
        """Puts the files that were kept at ``key`` into the directory. Raises StorageError."""
        with tempfile.TemporaryDirectory(dir=self.directory.parent) as folder:
            there = set(self.storage.fetch(key, Path(folder)))
            if _INDEX not in there:
                self.say("warning: the earlier notebook has left no files")
                return
            index = json.loads((Path(folder) / _INDEX).read_text())
            count = 0
            for name, mode in index.items():
                source = Path(folder, _FILES, _stored(name))
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    continue
                if not source.is_file():
                    self.say(f"warning: {name} was not kept whole")
                    continue
                target = self.directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                source.chmod(mode)
                os.replace(source, target)  # noqa: PTH105
                count += 1
        again = (
            "1 file of the earlier notebook is"
            if count == 1
            else f"{count} files of the earlier notebook are"
        )
        self.say(f"{again} here again")
