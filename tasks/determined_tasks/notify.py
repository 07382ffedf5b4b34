"""``python -m determined_tasks.notify DIRECTORY NUMBER``: sends a signal to an allocation's supervisor.

For launchers whose supervisors are the first process of a container: the kernel drops a signal that such a
process does not handle yet. Exit code 0: the supervisor has got it, or reports its end by now; 1: there is
none that heeds the signal, yet.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from determined_tasks.supervision import LegRecord


def notify(root: Path, number: int) -> bool:
    """False: no supervisor heeds the signal, yet."""
    record = LegRecord.read(root)
    if record is None or not record.supervisor.is_alive():
        return False
    pid = record.supervisor.pid
    if not _heeds(pid, number):
        return False
    os.kill(pid, number)
    return True


def _heeds(pid: int, number: int) -> bool:
    """Whether the process handles or ignores the signal: it ignores it once its end is decided."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = re.findall(r"^Sig(?:Cgt|Ign):\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


if __name__ == "__main__":
    sys.exit(0 if notify(Path(sys.argv[1]), int(sys.argv[2])) else 1)
