"""The memory that this process may still take."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_LIMITS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of both versions of control groups: folder, limit, usage, and what of it the kernel takes back first."""


def available_bytes() -> int:
    """The free bytes of the machine and of every control group around this process (a container's, a leg's).

    Pages of files that the kernel can take back count as left.
    """
    import psutil

    return min(int(psutil.virtual_memory().available), *_left_in_groups(), 1 << 62)


def _left_in_groups(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> list[int]:
    left = []
    for line in _read(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        for folder, most, used, reclaimable in _LIMITS:
            if controllers != folder and folder not in controllers.split(","):
                continue
            at = groups / folder
            # Within a container the name may be that of the host, which is not to be seen here.
            below = at / name.strip("/")
            for place in [at, *(one for one in (below, *below.parents) if one.is_relative_to(at))]:
                limit, usage = _read(place / most), _read(place / used)
                if limit.isdigit() and usage.isdigit():
                    free = int(limit) - int(usage) + _counter(place / "memory.stat", reclaimable)
                    left.append(max(free, 0))
    return left


def _counter(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
