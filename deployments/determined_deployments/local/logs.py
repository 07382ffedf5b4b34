"""The components' own logs (training logs are the service's: `det trial logs`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from determined_deployments.local import daemon, plan
from determined_deployments.local import state as states
from determined_deployments.local.errors import ClusterError
from determined_deployments.local.layout import Layout

POLL = 0.2


def read_logs(
    data_dir: str | os.PathLike[str] | None = None,
    components: Sequence[str] | None = None,
    *,
    tail: int = 100,
    follow: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[str, str]]:
    """(component, line) pairs: the last ``tail`` lines of each log (None: of all), then, with ``follow``, new
    lines as they come until ``stop()``. Raises ClusterError for an unknown name or when there is no
    log at all."""
    layout = Layout.of(data_dir)
    known = plan.names(states.load(layout))
    components = known if components is None else components
    unknown = [name for name in components if name not in known]
    if unknown:
        raise ClusterError(f"unknown component {unknown[0]!r}; choose one of {', '.join(known)}")
    paths = {name: layout.log(name) for name in components}
    if not any(path.exists() for path in paths.values()):
        raise ClusterError(
            f"no logs in {layout.root / 'logs'}, because the cluster was never "
            "started there; check --data-dir"
        )
    followers = {name: Follower(path) for name, path in paths.items()} if follow else {}
    for name, path in paths.items():
        for line in daemon.tail(path, tail).splitlines():
            yield name, line
    while followers and not stop():
        fresh = [(name, line) for name, each in followers.items() for line in each.lines()]
        yield from fresh
        if not fresh:
            time.sleep(POLL)


class Follower:
    """Reads whole lines appended to a file since this object was made; follows a log that was set aside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset = _identity(path)
        self._rest = b""

    def lines(self) -> list[str]:
        """New lines, without their line ends."""
        inode, size = _identity(self.path)
        if inode != self._inode or size < self._offset:
            self._inode, self._offset, self._rest = inode, 0, b""
        if size == self._offset:
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def _identity(path: Path) -> tuple[int, int]:
    try:
        info = path.stat()
    except FileNotFoundError:
        return 0, 0
    return info.st_ino, info.st_size
