"""Control groups of legs: in each the kernel counts, limits and ends what one leg has started.

An agent makes its own folder (its home) where it may, and each leg gets one in it. With version 2 of the
kernel's interface that is one folder; with version 1 processes, memory and processor time have one each.
Without a group for processor time the others hold all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from determined_tasks.limits import Limits

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("pids", "memory")
CPU = "cpu"
WEIGHT, MOST_WEIGHT = 100, 10_000
"""Of processor time, with version 2: the kernel's default, for each of a leg's slots, and its most."""
SHARES, MOST_SHARES = 1024, 262_144
"""The same with version 1."""
HOME_PROCESSES = 4
"""With version 1 all legs together compete with single processes of the machine: on each processor they get
as much as this number of them. One process must not get as much as all legs, and the cluster's own must get
some, too."""
PERIOD_US = 100_000
"""Within this time a leg computes as long as it may: the kernel's default."""
PROBE = "probe"
END_SECONDS = 10.0


class GroupsUnavailable(Exception):
    """This process may make no control groups with limits; the message says why."""


def homes(name: str) -> list[Path]:
    """The folders for an agent's legs, made if they are not there; below this process's own control group, or
    below the nearest above it in which it may. Raises GroupsUnavailable.
    """
    found = []
    for own, top, required in _hierarchies():
        problem: Exception | None = None
        for place in (own, *own.parents):
            if place.is_relative_to(top) and place.is_dir():
                try:
                    found.append(_made(place / name))
                    break
                except (OSError, subprocess.SubprocessError) as error:
                    problem = problem or error
        else:
            if required:
                raise GroupsUnavailable(str(problem or f"there is no {own}"))
    return found


def share_cpu(found: Iterable[Path]) -> bool:
    """True if the groups in these homes divide the processor time."""
    return any(
        (home / "cpu.shares").exists() or CPU in _read(home / "cgroup.subtree_control").split()
        for home in found
    )


def _hierarchies() -> Iterator[tuple[Path, Path, bool]]:
    """This process's groups that limit processes, memory and processor time, each with the top of its
    hierarchy; whether legs must have groups there."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError as error:
        raise GroupsUnavailable(str(error)) from None
    paths = {}
    for line in lines:
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path.lstrip("/")))
    tops = []
    for name in (*CONTROLLERS, CPU):
        # A controller of version 1 has a hierarchy; those of version 2 share the one without a name.
        top, path = (MOUNT / name, paths[name]) if name in paths else (MOUNT, paths.get("", ""))
        # Without version 1's there may be a plain folder.
        if top not in tops and (name != CPU or (top / "cgroup.procs").exists()):
            tops.append(top)
            yield top / path, top, name != CPU


def _made(home: Path) -> Path:
    """Raises OSError when legs cannot have groups there."""
    above = home.parent
    try:
        _pass_on(above)
        home.mkdir(exist_ok=True)
        _pass_on(home)
        _weigh(home)
        _probe(home / PROBE)
    except BaseException:
        with contextlib.suppress(OSError):
            home.rmdir()
        raise
    return home


def _pass_on(folder: Path) -> None:
    """Version 2: groups in the folder have the controllers."""
    control = folder / "cgroup.subtree_control"
    if control.exists():
        missing = set(CONTROLLERS) - set(control.read_text().split())
        if missing:
            control.write_text(" ".join(f"+{name}" for name in sorted(missing)))
        with contextlib.suppress(OSError):
            control.write_text(f"+{CPU}")


def _weigh(home: Path) -> None:
    shares = home / "cpu.shares"
    if shares.exists():
        of_all = SHARES * HOME_PROCESSES * (os.cpu_count() or 1)
        shares.write_text(str(min(of_all, MOST_SHARES)))


def _probe(folder: Path) -> None:
    """Check that a process can be put there. Raises OSError."""
    group = LegGroup([folder])
    group.make(Limits(processes=16, memory=1 << 30))
    try:
        with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as process:
            try:
                (folder / "cgroup.procs").write_text(str(process.pid))
            finally:
                process.kill()
    finally:
        group.end()


def sweep(found: Iterable[Path], keep: Iterable[str]) -> list[str]:
    """End the processes in groups of legs that are gone, and remove these groups; returns their names."""
    kept, swept = set(keep), set()
    for home in found:
        for folder in home.iterdir():
            if folder.is_dir() and folder.name not in kept:
                LegGroup([folder]).end()
                swept.add(folder.name)
    return sorted(swept)


@dataclass(frozen=True)
class LegGroup:
    """One leg's group: its folders, of which each holds all its processes."""

    folders: list[Path]

    @classmethod
    def of(cls, limits: Limits, allocation_id: str) -> LegGroup:
        return cls([Path(home, allocation_id) for home in limits.homes])

    def make(self, limits: Limits, slots: int = 0) -> None:
        """``slots``: those of the leg; its share of the processor time grows with them. Raises OSError."""
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
            for name, value in _settings(limits, slots):
                if (folder / name).exists():
                    (folder / name).write_text(value)

    def enter(self) -> None:
        """Puts this process there. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def take(self) -> None:
        """Puts all that this process has started there, one after the other: what forks meanwhile may be
        outside for a moment, and who means harm stays outside."""
        taken: set[int] = set()
        while self.folders and (more := set(_below(os.getpid())) - taken):
            for pid in more:
                for folder in self.folders:
                    # It may have ended.
                    with contextlib.suppress(OSError):
                        (folder / "cgroup.procs").write_text(str(pid))
            taken |= more

    @property
    def was_out_of_memory(self) -> bool:
        """True if the kernel ended a process because of the group's own limit."""
        for folder in self.folders:
            # Kills for want of the machine's memory are counted, too.
            events = _counters(folder / "memory.events")
            if events.get("oom_kill") and events.get("oom"):
                return True
            if _counters(folder / "memory.oom_control").get("oom_kill"):
                most = int(_read(folder / "memory.limit_in_bytes") or 0)
                # Newer kernels do not count how often the limit was reached.
                return int(_read(folder / "memory.max_usage_in_bytes") or 0) >= most * 0.98
        return False

    @property
    def had_all_processes(self) -> bool:
        """True if the kernel has refused a process or thread because of the group's limit."""
        return any(_counters(folder / "pids.events").get("max") for folder in self.folders)

    def kill(self) -> None:
        """Ends all processes in it, and lets none begin."""
        for folder in self.folders:
            limit = folder / "pids.max"
            if limit.exists():
                with contextlib.suppress(OSError):
                    limit.write_text("0")
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> bool:
        """Ends all processes in it and removes it; whether it is gone."""
        deadline = time.monotonic() + END_SECONDS
        while not self._remove():
            if time.monotonic() > deadline:
                return False
            self.kill()
            time.sleep(0.005)
        return True

    def _pids(self) -> set[int]:
        found: set[int] = set()
        for folder in self.folders:
            # A task that is root may have made groups inside.
            for file in [folder / "cgroup.procs", *folder.rglob("cgroup.procs")]:
                found.update(int(line) for line in _read(file).split())
        return found - {0, os.getpid()}

    def _remove(self) -> bool:
        for folder in self.folders:
            try:
                for inner, _, _ in os.walk(folder, topdown=False):
                    Path(inner).rmdir()
            except OSError:
                return False
        return True


def _below(pid: int) -> Iterator[int]:
    """The descendants of a process."""
    left = [pid]
    while left:
        for file in Path(f"/proc/{left.pop()}/task").glob("*/children"):
            children = [int(child) for child in _read(file).split()]
            yield from children
            left += children


def _settings(limits: Limits, slots: int) -> Iterator[tuple[str, str]]:
    """Of both versions. Without swap beside the memory, which would only make the end slower."""
    share = max(1, slots)
    yield "cpu.weight", str(min(WEIGHT * share, MOST_WEIGHT))
    yield "cpu.shares", str(min(SHARES * share, MOST_SHARES))
    if limits.cpus is not None:
        quota_us = int(limits.cpus * PERIOD_US)
        yield "cpu.max", f"{quota_us} {PERIOD_US}"
        yield "cpu.cfs_quota_us", str(quota_us)
    yield "pids.max", str(limits.processes)
    if limits.memory is not None:
        for name in ("memory.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            yield name, str(limits.memory)
        yield "memory.swap.max", "0"
        # All of a leg ends at once, and not one process of many.
        yield "memory.oom.group", "1"


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _counters(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
